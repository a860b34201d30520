/* File operations: one request, one answer. */
#include "akrun.h"

#define F_PARENTS 1u
#define F_NOFOLLOW 2u
#define PATH_MAX_LEN 4095u

static char path[PATH_MAX_LEN + 1], tmp[PATH_MAX_LEN + 64], target[PATH_MAX_LEN + 1];

static int refuse(i64 err, const char *text)
{
	static u8 b[128];
	put32(b, (u32)err);
	memcpy(b + 4, text, str_len(text));
	out_frame('Q', b, 4 + (u32)str_len(text));
	if (out_drain(FILE_IDLE_MS))
		oq->ended = 1;
	return 1;
}

static int answer_meta(const struct kstat *st)
{
	u8 b[28];
	put32(b, st->mode);
	put64(b + 4, (u64)st->size);
	put32(b + 12, st->uid);
	put32(b + 16, st->gid);
	put64(b + 20, (u64)st->mtime);
	out_frame('M', b, sizeof b);
	return out_drain(FILE_IDLE_MS);
}

static int answer_done(void)
{
	u8 b[28];
	memset(b, 0, sizeof b);
	out_frame('X', b, sizeof b);
	if (out_drain(FILE_IDLE_MS))
		oq->ended = 1;
	return 1;
}

static long stat_path(const char *p, struct kstat *st, int nofollow)
{
	return sc4(SYS_newfstatat, AT_FDCWD, p, st, nofollow ? AT_SYMLINK_NOFOLLOW : 0);
}

static usize dir_len(const char *p)
{
	usize n = str_len(p);
	while (n && p[n - 1] != '/')
		n--;
	return n;
}

/* mkdir -p. `upto` bytes of p are the directory; p is changed and restored. */
static i64 make_dirs(char *p, usize upto, int mode)
{
	for (usize i = 1; i <= upto; i++) {
		if (i != upto && p[i] != '/')
			continue;
		if (p[i - 1] == '/' && i != upto)
			continue;
		char c = p[i];
		p[i] = 0;
		long r = sc3(SYS_mkdirat, AT_FDCWD, p, mode);
		if (r == -EEXIST || (r < 0 && r != -ENOTDIR)) {
			/* EROFS, EACCES and others come before EEXIST on some file systems: look */
			struct kstat st;
			if (stat_path(p, &st, 0) == 0)
				r = (st.mode & S_IFMT) == S_IFDIR ? 0 : -ENOTDIR;
		}
		p[i] = c;
		if (r < 0)
			return -r;
	}
	return 0;
}

/* Follows symbolic links at the end of `path`, so that the file they name is replaced and not the link. */
static i64 resolve(void)
{
	for (int hops = 0; hops < 40; hops++) {
		long n = sc4(SYS_readlinkat, AT_FDCWD, path, target, PATH_MAX_LEN);
		if (n < 0)
			return n == -EINVAL || n == -ENOENT ? 0 : -n;
		target[n] = 0;
		if (target[0] == '/') {
			memcpy(path, target, (usize)n + 1);
			continue;
		}
		usize d = dir_len(path);
		if (d + (usize)n > PATH_MAX_LEN)
			return ENAMETOOLONG;
		memcpy(path + d, target, (usize)n + 1);
	}
	return ELOOP;
}

/* Takes 'I' frames until 'Z'. 0 on success, an errno, or -1 when the client is gone. */
static i64 receive(long fd)
{
	static u8 buf[CHUNK];
	for (;;) {
		u8 type;
		u32 len;
		if (!in_header(&type, &len, FILE_IDLE_MS))
			return -1;
		if (type == 'Z' && !len)
			return 0;
		if (type != 'I' || len > CHUNK)
			return EPROTO;
		if (!in_exact(buf, len, FILE_IDLE_MS))
			return -1;
		for (u32 o = 0; o < len;) {
			long r = sys_write((int)fd, buf + o, len - o);
			if (r == -EINTR)
				continue;
			if (r <= 0)
				return -r;
			o += (u32)r;
		}
	}
}

static int upload(u32 mode, u32 flags)
{
	struct kstat st;
	i64 err = 0;
	if (!(flags & F_NOFOLLOW) && (err = resolve()))
		return refuse(err, "resolve");
	usize d = dir_len(path);
	if (d == str_len(path))
		return refuse(EISDIR, "path");
	if ((flags & F_PARENTS) && d > 1 && (err = make_dirs(path, d - 1, 0755)))
		return refuse(err, "mkdir");
	if (stat_path(path, &st, 1) == 0) {
		if ((st.mode & S_IFMT) == S_IFDIR)
			return refuse(EISDIR, "target");
		if ((st.mode & S_IFMT) == S_IFLNK)
			return refuse(ELOOP, "target");
		if ((st.mode & S_IFMT) != S_IFREG)
			return refuse(EINVAL, "not a regular file");
	}
	/* Beside the target: a rename is atomic only within one file system. */
	memcpy(tmp, path, d);
	put_num(put_str(put_num(put_str(tmp + d, ".akrun-"), (u64)sys_getpid()), "-"), now_ms());
	long fd = sys_open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return refuse(-fd, "create");
	err = receive(fd);
	if (!err)
		err = -sc2(SYS_fchmod, fd, mode & 07777);
	if (!err)
		err = -sc2(SYS_fstat, fd, &st);
	long c = sys_close((int)fd); /* some file systems report a full disk here */
	if (!err)
		err = -c;
	if (!err)
		err = -sc4(SYS_renameat, AT_FDCWD, tmp, AT_FDCWD, path);
	if (err) {
		sc3(SYS_unlinkat, AT_FDCWD, tmp, 0);
		return err < 0 ? 1 : refuse(err, "write");
	}
	return answer_meta(&st) ? answer_done() : 1;
}

static int download(u64 max, u32 flags)
{
	struct kstat st;
	/* O_NONBLOCK: opening a FIFO must not wait for a writer. */
	long fd = sys_open(path,
			   O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (flags & F_NOFOLLOW ? O_NOFOLLOW : 0), 0);
	if (fd < 0)
		return refuse(-fd, "open");
	long r = sc2(SYS_fstat, fd, &st);
	if (r < 0)
		return refuse(-r, "stat");
	if ((st.mode & S_IFMT) != S_IFREG)
		return refuse((st.mode & S_IFMT) == S_IFDIR ? EISDIR : EINVAL, "not a regular file");
	if ((u64)st.size > max)
		return refuse(EFBIG, "larger than allowed");
	if (!answer_meta(&st))
		return 1;
	for (u64 sent = 0;;) {
		r = sys_read((int)fd, oq->buf + 5, OUT_CHUNK);
		if (r == -EINTR)
			continue;
		if (r < 0)
			return refuse(-r, "read");
		if (r == 0)
			return answer_done();
		sent += (u64)r;
		if (sent > max)
			return refuse(EFBIG, "larger than allowed");
		out_frame('O', NULL, (u32)r);
		if (!out_drain(FILE_IDLE_MS))
			return 1;
	}
}

/* The payload is fixed numbers and then the path. */
static int take_path(u32 len, u8 *fixed, u32 nfixed)
{
	if (len < nfixed + 1 || len - nfixed > PATH_MAX_LEN)
		return 0;
	if (!in_exact(fixed, nfixed, FILE_IDLE_MS) || !in_exact(path, len - nfixed, FILE_IDLE_MS))
		sys_exit(3);
	path[len - nfixed] = 0;
	return str_len(path) == len - nfixed;
}

/* A temporary file must not be left behind by a signal: only the client's end of file ends us here. */
static void hold_signals(void)
{
	u64 all = SIGBIT(SIGTERM) | SIGBIT(SIGINT) | SIGBIT(SIGHUP);
	sc4(SYS_rt_sigprocmask, 0, &all, NULL, 8);
}

int file_operation(u8 type, u32 len)
{
	u8 f[16];
	struct kstat st;
	long r;
	u32 nfixed = type == 'U' ? 8 : type == 'V' ? 12 : type == 'T' || type == 'J' ? 4 : type == 'Y' ? 0 : 99;
	if (nfixed == 99)
		return 0;
	if (!take_path(len, f, nfixed))
		return refuse(len > PATH_MAX_LEN ? ENAMETOOLONG : EINVAL, "path");
	switch (type) {
	case 'U':
		hold_signals();
		return upload(get32(f), get32(f + 4));
	case 'V':
		return download(get64(f), get32(f + 8));
	case 'T':
		r = stat_path(path, &st, get32(f) & F_NOFOLLOW);
		if (r < 0)
			return refuse(-r, "stat");
		return answer_meta(&st) ? answer_done() : 1;
	case 'Y':
		r = sc3(SYS_unlinkat, AT_FDCWD, path, 0);
		return r < 0 ? refuse(-r, "unlink") : answer_done();
	default: {
		i64 err = make_dirs(path, str_len(path), (int)(get32(f) & 07777));
		return err ? refuse(err, "mkdir") : answer_done();
	}
	}
}
