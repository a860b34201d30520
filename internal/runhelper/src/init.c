/* PID 1 of a container: keeps it alive, reaps, and kills what a dead supervisor left behind. */
#include "akrun.h"

#define LOOK_MS 500
#define STOPPED_EVERY 4 /* looks between two searches for stopped supervisors */

/* Whether we have a child. The file exists on kernels with CONFIG_PROC_CHILDREN; without it, wait tells. */
static int has_child(void)
{
	static char path[64];
	char buf[16];
	if (!*path) {
		char *p = put_num(put_str(path, "/proc/self/task/"), (u64)sys_getpid());
		put_str(p, "/children");
	}
	long n = read_small(path, buf, sizeof buf);
	return n < 0 ? reap(NULL) : n > 0;
}

int init_main(int argc, char **argv)
{
	u64 life = 0, begin = now_ms(), look = 0;
	u32 looks = 0;
	for (int i = 2; i < argc; i++) {
		if (memcmp(argv[i], "--lifetime=", 11))
			return 2;
		for (const char *p = argv[i] + 11; *p; p++) {
			if (*p < '0' || *p > '9' || life > 1000000000)
				return 2;
			life = life * 10 + (u64)(*p - '0');
		}
		if (!life)
			return 2;
	}
	sys_prctl(PR_SET_DUMPABLE, 0);
	sys_prctl(PR_SET_CHILD_SUBREAPER, 1); /* no effect for PID 1 */
	int sig = signal_fd(SIGBIT(SIGCHLD) | SIGBIT(SIGTERM) | SIGBIT(SIGINT));
	if (sig < 0)
		return 4;
	for (;;) {
		u64 now = now_ms();
		if (life && now - begin >= life * 1000)
			return 0;
		if (now >= look) {
			look = now + LOOK_MS;
			reap(NULL);
			/* Supervised runs come from the engine and have no parent here: a child is an orphan. */
			if (has_child()) {
				struct kill_result k;
				kill_tree(&k, 0);
			}
			if (++looks % STOPPED_EVERY == 0)
				kill_stopped_supervisors();
		}
		struct pollfd f = {sig, POLLIN, 0};
		poll_ms(&f, 1, LOOK_MS);
		u8 info[128];
		while (sys_read(sig, info, sizeof info) == sizeof info)
			if (get32(info) == SIGTERM || get32(info) == SIGINT)
				return 0;
		reap(NULL);
	}
}
