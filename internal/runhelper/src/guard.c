/* For hosts without a pid namespace of the run's own: a second process that only watches the supervisor. */
#include "akrun.h"

static void report_lost(u32 killed, int incomplete)
{
	u8 b[28];
	memset(b, 0, sizeof b);
	if (oq->in_write)
		return; /* nobody knows how much of the frame is out: the client reports an unknown outcome */
	if (!out_drain(FINISH_KILLED_MS) || oq->ended)
		return;
	put32(b + 4, SIGKILL);
	put32(b + 8, X_SUPERVISOR_LOST | (incomplete ? X_INCOMPLETE : 0));
	put32(b + 12, killed);
	out_frame('X', b, sizeof b);
	out_drain(FINISH_KILLED_MS);
}

int guard_main(char **env)
{
	sys_prctl(PR_SET_DUMPABLE, 0);
	sys_prctl(PR_SET_CHILD_SUBREAPER, 1);
	ignore_signal(SIGPIPE);
	ignore_signal(SIGHUP);
	ignore_signal(SIGINT);
	sc0(SYS_setsid);
	oq = map_memory(sizeof *oq, 1);
	if (oq)
		oq->guard = sys_getpid();
	int sig = signal_fd(SIGBIT(SIGCHLD) | SIGBIT(SIGTERM) | SIGBIT(SIGUSR1));
	if (!oq || sig < 0)
		return 4;
	int self = sys_getpid();
	long pid = sys_fork();
	if (pid < 0)
		return 4;
	if (pid == 0) {
		u64 none = 0;
		sys_close(sig);
		sys_prctl(PR_SET_PDEATHSIG, SIGTERM);
		sc4(SYS_rt_sigprocmask, 2, &none, NULL, 8);
		if (sys_getppid() != self)
			sys_exit(3);
		sys_exit(run_main(env));
	}
	main_pid = (int)pid;
	/* The client's end of file must depend on the supervisor alone. */
	long null = sys_open("/dev/null", O_RDWR | O_CLOEXEC, 0);
	if (null >= 0)
		sc3(SYS_dup3, null, 0, 0);
	int code = 3, lost = 0;
	for (;;) {
		int st = 0;
		long r = sys_wait(&st, WNOHANG | WALL | WUNTRACED);
		if (r == pid && (st & 0xff) == 0x7f) {
			sys_kill((int)pid, SIGKILL); /* a stopped supervisor keeps no deadline */
			continue;
		}
		if (r == pid) {
			main_done = 1;
			lost = (st & 0x7f) != 0; /* an exit, whatever its code, is the supervisor's own decision */
			code = lost ? 3 : (st >> 8) & 0xff;
			break;
		}
		if (r > 0 || r == -EINTR)
			continue;
		if (r < 0)
			break;
		struct pollfd f = {sig, POLLIN, 0};
		poll_ms(&f, 1, -1);
		u8 info[128];
		while (sys_read(sig, info, sizeof info) == sizeof info) {
			if (get32(info) == SIGTERM)
				sys_kill((int)pid, SIGTERM);
			if (oq->detached && null >= 0) {
				sc3(SYS_dup3, null, 1, 0);
				sc3(SYS_dup3, null, 2, 0);
			}
		}
	}
	struct kill_result k;
	kill_tree(&k, 0);
	if (lost && !oq->ended)
		report_lost(k.killed, k.incomplete);
	return code;
}
