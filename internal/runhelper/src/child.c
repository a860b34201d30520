/* Between fork and exec. */
#include "akrun.h"

static void tell(int fd, u32 kind, u32 index, u32 stage, i64 err)
{
	struct child_report r = {kind, index, (u32)err, stage};
	sys_write(fd, &r, sizeof r); /* below PIPE_BUF: whole or not at all */
}

static const char *path_of(char **envp)
{
	for (; *envp; envp++)
		if (!memcmp(*envp, "PATH=", 5))
			return *envp + 5;
	return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
}

/* execve returned: an existing file that gives ENOENT names an interpreter or loader that is missing. */
static void explain(const char *file, i64 *err, u32 *stage)
{
	if (*err == ENOENT && sc3(SYS_faccessat, AT_FDCWD, file, 0) == 0)
		*stage = STAGE_INTERPRETER;
}

/* Tries one program name the way execvp does. Returns only on failure. */
static i64 try_program(const char *name, char **argv, char **envp, u32 *stage)
{
	static char file[8192];
	*stage = STAGE_EXEC;
	if (!*name)
		return ENOENT;
	for (const char *p = name; *p; p++)
		if (*p == '/') {
			i64 err = -sc3(SYS_execve, name, argv, envp);
			explain(name, &err, stage);
			return err;
		}
	i64 result = ENOENT;
	usize nlen = str_len(name);
	for (const char *p = path_of(envp);; p++) {
		const char *end = p;
		while (*end && *end != ':')
			end++;
		usize n = (usize)(end - p);
		if (n + nlen + 3 <= sizeof file) {
			char *q = file;
			memcpy(q, p, n);
			q += n;
			if (n == 0)
				*q++ = '.'; /* an empty element means the working directory */
			*q++ = '/';
			put_str(q, name);
			i64 err = -sc3(SYS_execve, file, argv, envp);
			u32 st = STAGE_EXEC;
			explain(file, &err, &st);
			if (st == STAGE_INTERPRETER)
				*stage = st;
			else if (err == EACCES)
				result = EACCES;
			else if (err != ENOENT && err != ENOTDIR)
				return err;
		}
		p = end;
		if (!*p)
			break;
	}
	if (result == EACCES)
		*stage = STAGE_EXEC;
	return result;
}

/* Closes everything from fd on. Only inherited descriptors can be there: our own are close-on-exec. */
static void close_from(int fd)
{
	if (sc3(SYS_close_range, fd, ~0u, 0) == 0)
		return;
	static u8 buf[4096] __attribute__((aligned(8)));
	long d = sys_open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (d < 0) {
		for (int i = fd; i < 4096; i++)
			sys_close(i);
		return;
	}
	for (;;) {
		long n = sc3(SYS_getdents64, d, buf, sizeof buf);
		if (n <= 0)
			break;
		for (long o = 0; o < n;) {
			u16 reclen;
			memcpy(&reclen, buf + o + 16, 2);
			const char *name = (const char *)buf + o + 19;
			int v = 0;
			while (*name >= '0' && *name <= '9')
				v = v * 10 + (*name++ - '0');
			if (!*name && v >= fd && v != d)
				sys_close(v);
			o += reclen;
		}
	}
	sys_close((int)d);
}

void child_main(const struct child_request *c)
{
	u64 none = 0, act[4] = {0, 0, 0, 0};
	u64 core[2] = {0, 0};
	int report = 4;

	sc0(SYS_setsid);
	for (int s = 1; s <= 64; s++)
		sc4(SYS_rt_sigaction, s, act, NULL, 8);
	sc4(SYS_rt_sigprocmask, 2, &none, NULL, 8);
	sc4(SYS_prlimit64, 0, RLIMIT_CORE, core, NULL);
	sys_prctl(PR_SET_PDEATHSIG, 0);

	/* All of ours lie at 10 and above, so none is overwritten before it is used. */
	long e = 0;
	if (c->in >= 0)
		e = sc3(SYS_dup3, c->in, 0, 0);
	else {
		long null = sys_open("/dev/null", O_RDONLY | O_CLOEXEC, 0);
		if (null < 0)
			sys_close(0);
		else
			e = sc3(SYS_dup3, null, 0, 0);
	}
	if (e >= 0)
		e = sc3(SYS_dup3, c->out, 1, 0);
	if (e >= 0)
		e = sc3(SYS_dup3, c->err, 2, 0);
	if (e >= 0 && c->blob >= 0)
		e = sc3(SYS_dup3, c->blob, 3, 0);
	else
		sys_close(3);
	if (e >= 0)
		e = sc3(SYS_dup3, c->report, report, O_CLOEXEC);
	if (e < 0) {
		tell(c->report, 1, 0, STAGE_SETUP, -e);
		sys_exit(127);
	}
	close_from(5);

	if (c->dir && (e = sc1(SYS_chdir, c->dir)) < 0) {
		tell(report, 1, 0, STAGE_CHDIR, -e);
		sys_exit(127);
	}
	i64 err = ENOENT;
	u32 stage = STAGE_EXEC, at = 0;
	for (u32 i = 0; i < c->nalts; i++) {
		u32 st;
		tell(report, 0, i, 0, 0);
		c->argv[0] = c->alts[i];
		i64 e2 = try_program(c->alts[i], c->argv, c->envp, &st);
		if (i == 0 || e2 != ENOENT || st != STAGE_EXEC) {
			err = e2;
			stage = st;
			at = i;
		}
		if (e2 != ENOENT || st != STAGE_EXEC)
			break; /* found, but it does not start: the next name would hide that */
	}
	tell(report, 1, at, stage, err);
	sys_exit(127);
}
