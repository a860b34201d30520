/* The supervisor of one run. One thread, one loop, bounded buffers. */
#include "akrun.h"

#define MAX_ARGS 16384u
#define MAX_ENV 16384u
#define MAX_ALTS 16u
#define ARENA (8u << 20)

static char *args[MAX_ARGS + 2], *envs[MAX_ENV + 1], *alts[MAX_ALTS];
static u32 nargs, nenvs, nalts;
static char *arena, *dir;
static long subreaper; /* errno of becoming one, negative, or 0 */
static usize arena_used;

static struct {
	u64 timeout;
	u32 grace, flags;
} par;

enum phase { STARTING, RUNNING, LINGER, FINISH };

static struct {
	enum phase phase;
	int sig, report, blob;
	int pipe[2];	 /* our ends of stdout and stderr; -1 when at the end */
	int in;		 /* our end of stdin; -1 when closed */
	int ctl_open, eof_wanted, kill_now, turn;
	int no_children;
	u32 flags, index, leftovers, consumed;
	u64 start, deadline, kill_at, linger_until, linger_max, finish_until, finish_stall, ended;
	u64 left[2];	 /* FINISH: bytes that were in the pipes when the run ended */
	int end_queued, failed;
	struct child_report fail;
	/* control input */
	u8 head[5];
	u32 have, body; /* header bytes seen; payload bytes of an 'I' still to come */
	/* bytes for the child's stdin, a ring */
	u32 rpos, rlen;
	u8 ring[CREDIT];
} s;

static const char *const stage_names[] = {"setup", "chdir", "exec", "interpreter", "fork",
					  "memfd", "pipe", "arguments", "protocol", "subreaper"};

static void not_started(u32 err, u32 index, u32 stage)
{
	static u8 b[64];
	put32(b, err);
	put32(b + 4, index);
	const char *t = stage_names[stage];
	memcpy(b + 8, t, str_len(t));
	out_frame('N', b, 8 + (u32)str_len(t));
}

static void fail_setup(i64 err, u32 stage) __attribute__((noreturn));
static void fail_setup(i64 err, u32 stage)
{
	not_started((u32)err, 0, stage);
	if (out_drain(SETUP_IDLE_MS))
		oq->ended = 1;
	sys_exit(0);
}

/* Reads a payload into the arena and ends it with a NUL. */
static char *keep(u32 len)
{
	if (len > ARG_MAX_LEN || arena_used + len + 1 > ARENA)
		fail_setup(E2BIG, STAGE_ARGUMENTS);
	char *p = arena + arena_used;
	if (!in_exact(p, len, SETUP_IDLE_MS))
		sys_exit(3);
	p[len] = 0;
	for (u32 i = 0; i < len; i++)
		if (!p[i])
			fail_setup(EINVAL, STAGE_ARGUMENTS);
	arena_used += len + 1;
	return p;
}

static int high_fd(long fd)
{
	if (fd < 0)
		return (int)fd;
	long r = sys_fcntl((int)fd, F_DUPFD_CLOEXEC, 10);
	sys_close((int)fd);
	return (int)r;
}

/* An unnamed file for the code. A memfd works on a read-only root; where it is refused, a file in one of the
 * usual places that loses its name at once. */
static int make_blob(void)
{
	static const char *const dirs[] = {"/tmp", "/dev/shm", "/var/tmp", "."};
	long fd = sc2(SYS_memfd_create, "code", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
	if (fd == -EINVAL)
		fd = sc2(SYS_memfd_create, "code", MFD_CLOEXEC);
	i64 first = fd;
	for (u32 i = 0; fd < 0 && i < sizeof dirs / sizeof *dirs; i++) {
		fd = sys_open(dirs[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
		if (fd < 0) {
			char name[96];
			put_num(put_str(put_num(put_str(put_str(name, dirs[i]), "/.akrun-"), (u64)sys_getpid()), "-"),
				now_ms());
			fd = sys_open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
			if (fd >= 0)
				sc3(SYS_unlinkat, AT_FDCWD, name, 0);
		}
	}
	if (fd < 0)
		fail_setup(-first, STAGE_MEMFD);
	return high_fd(fd);
}

static void blob_chunk(u32 len)
{
	if (len > CHUNK)
		fail_setup(EPROTO, STAGE_PROTOCOL);
	if (s.blob < 0)
		s.blob = make_blob();
	if (s.blob < 0)
		fail_setup(-s.blob, STAGE_MEMFD);
	if (!in_exact(s.ring, len, SETUP_IDLE_MS))
		sys_exit(3);
	for (u32 o = 0; o < len;) {
		long r = sys_write(s.blob, s.ring + o, len - o);
		if (r == -EINTR)
			continue;
		if (r <= 0)
			fail_setup(-r, STAGE_MEMFD);
		o += (u32)r;
	}
}

static int same_key(const char *a, const char *b)
{
	while (*a && *a != '=' && *a == *b)
		a++, b++;
	return (*a == '=' || !*a) && (*b == '=' || !*b);
}

/* The run's environment: our own one below what the client sent, unless it asked for a clean one. */
static void lay_environment(char **own)
{
	u32 given = nenvs;
	if (par.flags & P_CLEAR_ENV)
		return;
	for (; *own && nenvs < MAX_ENV; own++) {
		u32 i = 0;
		while (i < given && !same_key(*own, envs[i]))
			i++;
		if (i == given)
			envs[nenvs++] = *own;
	}
}

/* Everything up to 'G'. Returns 0 when the request was a file operation, which is then done. */
static int read_setup(void)
{
	u8 type;
	u32 len;
	for (;;) {
		if (!in_header(&type, &len, SETUP_IDLE_MS))
			sys_exit(3);
		switch (type) {
		case 'A':
			if (nargs > MAX_ARGS)
				fail_setup(E2BIG, STAGE_ARGUMENTS);
			args[nargs++] = keep(len);
			break;
		case 'L':
			if (nalts >= MAX_ALTS - 1)
				fail_setup(E2BIG, STAGE_ARGUMENTS);
			alts[++nalts] = keep(len); /* alts[0] is argv[0] */
			break;
		case 'E':
			if (nenvs >= MAX_ENV)
				fail_setup(E2BIG, STAGE_ARGUMENTS);
			envs[nenvs++] = keep(len);
			break;
		case 'D':
			dir = keep(len);
			break;
		case 'B':
			blob_chunk(len);
			break;
		case 'P': {
			u8 p[16];
			if (len != 16)
				fail_setup(EPROTO, STAGE_PROTOCOL);
			if (!in_exact(p, 16, SETUP_IDLE_MS))
				sys_exit(3);
			par.timeout = get64(p);
			par.grace = get32(p + 8);
			par.flags = get32(p + 12);
			break;
		}
		case 'G':
			if (len || !nargs)
				fail_setup(EPROTO, STAGE_PROTOCOL);
			alts[0] = args[0];
			nalts++;
			return 1;
		default:
			if (file_operation(type, len))
				return 0;
			fail_setup(EPROTO, STAGE_PROTOCOL);
		}
	}
}

static void make_pipe(int p[2])
{
	int t[2];
	long r = sc2(SYS_pipe2, t, O_CLOEXEC);
	if (r < 0)
		fail_setup(-r, STAGE_PIPE);
	p[0] = high_fd(t[0]);
	p[1] = high_fd(t[1]);
	if (p[0] < 0 || p[1] < 0)
		fail_setup(p[0] < 0 ? -p[0] : -p[1], STAGE_PIPE);
}

static void start(void)
{
	int in[2] = {-1, -1}, out[2], err[2], rep[2];
	/* Without it orphans are lost, and "no child left" would mean nothing. PID 1 gets them anyway. */
	if (subreaper < 0 && sys_getpid() != 1)
		fail_setup(-subreaper, STAGE_SUBREAPER);
	if (par.flags & P_STDIN)
		make_pipe(in);
	make_pipe(out);
	make_pipe(err);
	make_pipe(rep);
	oom_before();
	s.start = now_ms();
	long pid = sys_fork();
	if (pid < 0)
		fail_setup(-pid, STAGE_FORK);
	if (pid == 0) {
		struct child_request c = {args, envs, alts, nalts, dir, in[0], out[1], err[1], s.blob, rep[1]};
		child_main(&c);
	}
	main_pid = (int)pid;
	if (in[0] >= 0)
		sys_close(in[0]);
	sys_close(out[1]);
	sys_close(err[1]);
	sys_close(rep[1]);
	if (s.blob >= 0)
		sys_close(s.blob);
	s.in = in[1];
	s.pipe[0] = out[0];
	s.pipe[1] = err[0];
	s.report = rep[0];
	if (s.in >= 0)
		set_nonblocking(s.in);
	set_nonblocking(out[0]);
	set_nonblocking(err[0]);
	set_nonblocking(rep[0]);
	/* A timeout beyond a century would overflow. */
	s.deadline = par.timeout && par.timeout < (1ul << 42) ? s.start + par.timeout : 0;
}

static void close_stdin(void)
{
	if (s.in >= 0)
		sys_close(s.in);
	s.in = -1;
	s.consumed += s.rlen; /* nobody will read it: give the credit back, or the client would wait */
	s.rlen = 0;
}

static void control_lost(void)
{
	s.ctl_open = 0;
	s.kill_now = 1;
	s.flags |= X_CONTROL_LOST;
}

/* TERM first, to the process and its group, and CONT in case it is stopped. */
static void begin_term(u64 now)
{
	if (main_done || s.kill_at)
		return;
	s.kill_at = now + par.grace;
	if (!par.grace)
		return;
	sys_kill(main_pid, SIGTERM);
	sys_kill(-main_pid, SIGTERM);
	sys_kill(main_pid, SIGCONT);
	sys_kill(-main_pid, SIGCONT);
}

static void control_frame(u64 now)
{
	u32 len = get32(s.head + 1);
	s.have = 0;
	switch (s.head[0]) {
	case 'I':
		/* s.consumed credits that are not sent yet do not count as room, so a ring never overflows
		 * with an honest client. */
		if (len > CHUNK || !(par.flags & P_STDIN) || s.eof_wanted)
			control_lost();
		else
			s.body = len;
		return;
	case 'Z':
		s.eof_wanted = 1;
		break;
	case 'K':
		if (s.phase < FINISH) {
			if (s.flags & X_KILLED)
				s.kill_now = 1;
			s.flags |= X_KILLED;
			begin_term(now);
		} else if (!s.finish_until) {
			s.finish_until = now + FINISH_KILLED_MS;
		}
		break;
	default:
		control_lost();
		return;
	}
	if (len)
		control_lost();
}

/* Reads what the client sent. Data goes straight into the ring, for which the client holds credit; so this
 * never has to stop reading, and a kill behind data that nobody consumes is still seen. */
static void read_control(u64 now)
{
	while (s.ctl_open) {
		long r;
		if (s.body) {
			static u8 waste[4096];
			u8 *to = waste;
			u32 n = s.body < sizeof waste ? s.body : sizeof waste;
			if (s.in >= 0) {
				u32 end = (s.rpos + s.rlen) % CREDIT;
				u32 room = CREDIT - s.rlen, line = CREDIT - end;
				if (!room)
					return control_lost();
				n = s.body < room ? s.body : room;
				n = n < line ? n : line;
				to = s.ring + end;
			}
			r = sys_read(0, to, n);
			if (r > 0) {
				s.body -= (u32)r;
				if (s.in >= 0)
					s.rlen += (u32)r;
				else
					s.consumed += (u32)r;
				continue;
			}
		} else {
			r = sys_read(0, s.head + s.have, 5 - s.have);
			if (r > 0) {
				s.have += (u32)r;
				if (s.have == 5)
					control_frame(now);
				continue;
			}
		}
		if (r == -EINTR)
			continue;
		if (r != -EAGAIN)
			control_lost();
		return;
	}
}

static void feed_stdin(void)
{
	while (s.in >= 0 && s.rlen) {
		u32 line = CREDIT - s.rpos;
		long r = sys_write(s.in, s.ring + s.rpos, s.rlen < line ? s.rlen : line);
		if (r > 0) {
			s.rpos = (s.rpos + (u32)r) % CREDIT;
			s.rlen -= (u32)r;
			s.consumed += (u32)r;
		} else if (r == -EAGAIN) {
			return;
		} else if (r != -EINTR) {
			close_stdin(); /* EPIPE: the child closed its end, which is its right */
		}
	}
	if (s.eof_wanted && !s.rlen && s.in >= 0)
		close_stdin();
}

/* Moves one chunk from a pipe of the run into the (empty) queue. 1 when there was data. */
static int pump(int which, u32 limit)
{
	int fd = s.pipe[which];
	if (fd < 0)
		return 0;
	long r;
	do
		r = sys_read(fd, oq->buf + 5, limit < OUT_CHUNK ? limit : OUT_CHUNK);
	while (r == -EINTR);
	if (r > 0) {
		out_frame(which ? 'R' : 'O', NULL, (u32)r);
		return (int)r;
	}
	if (r != -EAGAIN) {
		sys_close(fd);
		s.pipe[which] = -1;
	}
	return 0;
}

static void read_report(void)
{
	struct child_report r;
	for (;;) {
		long n = sys_read(s.report, &r, sizeof r);
		if (n == -EINTR)
			continue;
		if (n == -EAGAIN)
			return;
		if (n == sizeof r && r.kind == 0) {
			s.index = r.index;
			continue;
		}
		if (n == sizeof r) {
			s.failed = 1;
			s.fail = r;
			continue;
		}
		break; /* end of file: exec has happened, or the child is gone */
	}
	sys_close(s.report);
	s.report = -1;
}

static void enter_finish(u64 now)
{
	s.phase = FINISH;
	s.ended = now;
	if (s.report >= 0)
		read_report(); /* killed at the very start: it may have failed by itself before */
	close_stdin();
	for (int i = 0; i < 2; i++) {
		int n = 0;
		if (s.pipe[i] >= 0 && sc3(SYS_ioctl, s.pipe[i], FIONREAD, &n) == 0 && n > 0)
			s.left[i] = (u64)n;
	}
	if (s.flags & (X_TIMED_OUT | X_KILLED | X_TERMINATED))
		s.finish_until = now + FINISH_KILLED_MS;
	s.finish_stall = now + FINISH_STALL_MS;
}

static void kill_all(u64 *now)
{
	struct kill_result k;
	kill_tree(&k, sys_getpid() == 1);
	s.no_children = !k.incomplete;
	if (k.incomplete)
		s.flags |= X_INCOMPLETE;
	s.leftovers += k.killed;
	*now = now_ms();
}

/* Moves the run from phase to phase. */
static void advance(u64 now)
{
	if (s.phase == STARTING && s.report < 0)
		s.phase = RUNNING; /* 'S' or 'N' is queued by next_frame */
	if (s.phase == FINISH)
		return;
	if (s.deadline && now >= s.deadline && !main_done && !(s.flags & (X_TIMED_OUT | X_KILLED))) {
		s.flags |= X_TIMED_OUT;
		begin_term(now);
	}
	if (s.kill_at && now >= s.kill_at)
		s.kill_now = 1;
	if (s.kill_now) {
		kill_all(&now);
		enter_finish(now);
		return;
	}
	if (main_done && s.phase == RUNNING) {
		s.phase = LINGER;
		s.linger_until = now + LINGER_MS;
		s.linger_max = now + LINGER_MAX_MS;
	}
	/* On a busy machine a `tee` that the program did not wait for may not even have been scheduled yet. */
	if (s.phase == LINGER && !s.no_children && now >= s.linger_until && now < s.linger_max && tree_busy())
		s.linger_until = now + LINGER_MORE_MS;
	if (s.phase == LINGER && (s.no_children || now >= s.linger_until)) {
		if (!s.no_children && !(par.flags & P_KEEP))
			kill_all(&now);
		enter_finish(now);
	}
}

static int announced;

static void queue_end(void)
{
	u8 b[28];
	u32 code = 0, sig = 0, oom = oom_delta();
	if (main_done && (main_status & 0x7f))
		sig = (u32)main_status & 0x7f;
	else if (main_done)
		code = ((u32)main_status >> 8) & 0xff;
	else
		sig = SIGKILL;
	if (!s.no_children && (par.flags & P_KEEP) && !(s.flags & X_INCOMPLETE))
		s.flags |= X_BACKGROUND;
	if (oom && !s.kill_now && (sig == SIGKILL || code == 137))
		s.flags |= X_OOM;
	put32(b, code);
	put32(b + 4, sig);
	put32(b + 8, s.flags);
	put32(b + 12, s.leftovers);
	put32(b + 16, oom);
	put64(b + 20, s.ended - s.start);
	out_frame('X', b, sizeof b);
	s.end_queued = 1;
}

/* Puts the next frame into the empty queue. 0 when there is none. */
static int next_frame(void)
{
	u8 b[8];
	if (s.phase == STARTING)
		return 0;
	if (!announced) {
		announced = 1;
		if (s.failed) {
			not_started(s.fail.err, s.fail.index, s.fail.stage < 9 ? s.fail.stage : 0);
			s.end_queued = 1;
			return 1;
		}
		put32(b, (u32)main_pid);
		put32(b + 4, s.index);
		out_frame('S', b, 8);
		return 1;
	}
	if (s.end_queued)
		return 0;
	if (s.consumed) {
		put32(b, s.consumed);
		s.consumed = 0;
		out_frame('C', b, 4);
		return 1;
	}
	for (int k = 0; k < 2; k++) {
		int w = s.turn ^ k;
		u32 limit = OUT_CHUNK;
		if (s.phase == FINISH) {
			if (!s.left[w])
				continue;
			if (s.left[w] < limit)
				limit = (u32)s.left[w];
		}
		int n = pump(w, limit);
		if (!n) {
			s.left[w] = 0;
			continue;
		}
		if (s.phase == FINISH)
			s.left[w] -= (u32)n;
		s.turn = w ^ 1;
		return 1;
	}
	if (s.phase == FINISH) {
		queue_end();
		return 1;
	}
	return 0;
}

static void read_signals(u64 now)
{
	u8 info[128];
	while (sys_read(s.sig, info, sizeof info) == sizeof info)
		if (get32(info) == SIGTERM) {
			s.flags |= X_TERMINATED;
			if (s.phase == FINISH)
				s.finish_until = now + 1000;
			else
				s.kill_now = 1;
		}
	s.no_children = !reap(NULL);
}

static i64 wait_time(u64 now)
{
	u64 t = 0;
	u64 c[4] = {s.phase < FINISH && !(s.flags & (X_TIMED_OUT | X_KILLED)) && !main_done ? s.deadline : 0,
		    s.phase < FINISH ? s.kill_at : 0,
		    s.phase == LINGER ? s.linger_until : 0,
		    s.phase == FINISH ? (s.finish_until ? s.finish_until : s.finish_stall) : 0};
	for (int i = 0; i < 4; i++)
		if (c[i] && (!t || c[i] < t))
			t = c[i];
	if (!t)
		return -1;
	return t > now ? (i64)(t - now) : 0;
}

static void wait_events(u64 now)
{
	struct pollfd f[7];
	int queued = oq->off < oq->len;
	f[0] = (struct pollfd){s.ctl_open ? 0 : -1, POLLIN, 0};
	f[1] = (struct pollfd){1, queued ? POLLOUT : 0, 0};
	f[2] = (struct pollfd){s.sig, POLLIN, 0};
	f[3] = (struct pollfd){s.report, POLLIN, 0};
	f[4] = (struct pollfd){s.in, s.rlen ? POLLOUT : 0, 0};
	for (int i = 0; i < 2; i++)
		f[5 + i] = (struct pollfd){!queued && (s.phase == RUNNING || s.phase == LINGER) ? s.pipe[i] : -1,
					   POLLIN, 0};
	if (poll_ms(f, 7, wait_time(now)) <= 0)
		return;
	now = now_ms();
	if (f[2].revents)
		read_signals(now);
	if (f[3].revents)
		read_report();
	if (f[0].revents)
		read_control(now);
	if (f[1].revents & (POLLERR | POLLNVAL))
		control_lost();
	if (f[4].revents & (POLLERR | POLLHUP | POLLNVAL))
		close_stdin();
	feed_stdin();
}

static void discard(int fd)
{
	/* Not until it is empty: a flood must not keep us from the signals. */
	for (int i = 0; fd >= 0 && i < 16; i++)
		if (sys_read(fd, oq->buf, sizeof oq->buf) <= 0)
			return;
}

/* The run is over and its background processes stay: hold their pipes open, so that they are not killed by
 * writing, take in their orphans, and leave with the last of them. */
static void stay_behind(void)
{
	long null = sys_open("/dev/null", O_RDWR | O_CLOEXEC, 0);
	for (int fd = 0; fd < 3; fd++) {
		if (null >= 0)
			sc3(SYS_dup3, null, fd, 0);
		else
			sys_close(fd);
	}
	oq->detached = 1;
	if (oq->guard && sys_getppid() == oq->guard)
		sys_kill(oq->guard, SIGUSR1);
	for (;;) {
		struct pollfd f[3] = {{s.sig, POLLIN, 0}, {s.pipe[0], POLLIN, 0}, {s.pipe[1], POLLIN, 0}};
		if (!reap(NULL))
			sys_exit(0);
		poll_ms(f, 3, -1);
		for (int i = 0; i < 2; i++)
			if (f[1 + i].revents) {
				discard(s.pipe[i]);
				if (f[1 + i].revents & (POLLERR | POLLHUP)) {
					sys_close(s.pipe[i]);
					s.pipe[i] = -1;
				}
			}
		if (f[0].revents) {
			u8 info[128];
			while (sys_read(s.sig, info, sizeof info) == sizeof info)
				if (get32(info) == SIGTERM) {
					struct kill_result k;
					kill_tree(&k, sys_getpid() == 1);
					sys_exit(0);
				}
		}
	}
}

int run_main(char **env)
{
	sys_prctl(PR_SET_DUMPABLE, 0);
	subreaper = sys_prctl(PR_SET_CHILD_SUBREAPER, 1);
	ignore_signal(SIGPIPE);
	ignore_signal(SIGHUP);
	ignore_signal(SIGINT);
	sc0(SYS_setsid); /* away from the terminal's job control; refused for a group leader */
	set_nonblocking(0);
	set_nonblocking(1);
	s.sig = s.report = s.blob = s.in = s.pipe[0] = s.pipe[1] = -1;
	s.ctl_open = 1;
	arena = map_memory(ARENA, 0);
	if (!arena)
		return 4;
	out_hello();
	if (!read_setup())
		return 0;
	lay_environment(env);
	s.sig = high_fd(signal_fd(SIGBIT(SIGCHLD) | SIGBIT(SIGTERM)));
	if (s.sig < 0)
		fail_setup(-s.sig, STAGE_SETUP);
	start();

	for (;;) {
		u64 now = now_ms();
		advance(now);
		/* Everything that can be written is; a few chunks at a time, so that a flood of output does not
		 * keep the loop from the deadline and the control pipe. */
		for (int i = 0; i < 16; i++) {
			int r = out_flush();
			if (r < 0) {
				control_lost();
				break;
			}
			if (r == 0)
				break;
			if (s.phase == FINISH)
				s.finish_stall = now_ms() + FINISH_STALL_MS;
			if (s.end_queued || !next_frame())
				break;
		}
		if (s.end_queued && oq->off == oq->len) {
			oq->ended = 1;
			break;
		}
		if (s.phase == FINISH && !s.ctl_open)
			return 3; /* nobody is there to be told */
		now = now_ms();
		if (s.phase == FINISH && now >= (s.finish_until ? s.finish_until : s.finish_stall))
			return 3;
		wait_events(now);
	}
	if (!s.no_children && (par.flags & P_KEEP) && !s.kill_now && !s.failed)
		stay_behind();
	return 0;
}
