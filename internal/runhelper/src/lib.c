/* What a C library would give us, as far as it is needed. */
#include "akrun.h"

/* Plain loops; the build forbids the compiler to turn them into calls of themselves. */
void *memcpy(void *d, const void *s, usize n)
{
	u8 *a = d;
	const u8 *b = s;
	while (n--)
		*a++ = *b++;
	return d;
}

void *memmove(void *d, const void *s, usize n)
{
	u8 *a = d;
	const u8 *b = s;
	if (a <= b)
		return memcpy(d, s, n);
	while (n--)
		a[n] = b[n];
	return d;
}

void *memset(void *d, int c, usize n)
{
	u8 *a = d;
	while (n--)
		*a++ = (u8)c;
	return d;
}

int memcmp(const void *a, const void *b, usize n)
{
	const u8 *x = a, *y = b;
	for (; n--; x++, y++)
		if (*x != *y)
			return *x - *y;
	return 0;
}

usize str_len(const char *s)
{
	usize n = 0;
	while (s[n])
		n++;
	return n;
}

int str_eq(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* Appends s and a NUL; returns the place of the NUL. */
char *put_str(char *p, const char *s)
{
	while (*s)
		*p++ = *s++;
	*p = 0;
	return p;
}

char *put_num(char *p, u64 v)
{
	char t[24];
	int n = 0;
	do
		t[n++] = (char)('0' + v % 10);
	while (v /= 10);
	while (n)
		*p++ = t[--n];
	*p = 0;
	return p;
}

void put32(u8 *p, u32 v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (u8)(v >> (8 * i));
}

void put64(u8 *p, u64 v)
{
	put32(p, (u32)v);
	put32(p + 4, (u32)(v >> 32));
}

u32 get32(const u8 *p)
{
	return (u32)p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24;
}

u64 get64(const u8 *p)
{
	return (u64)get32(p) | (u64)get32(p + 4) << 32;
}

/* CLOCK_MONOTONIC: a changed wall clock must not end a run. */
u64 now_ms(void)
{
	struct timespec t = {0, 0};
	sc2(SYS_clock_gettime, 1, &t);
	return (u64)t.sec * 1000 + (u64)t.nsec / 1000000;
}

/* Zeroed memory, or NULL. Pages are charged when they are first touched. */
void *map_memory(usize n, int shared)
{
	long r = sc6(SYS_mmap, 0, n, PROT_READ | PROT_WRITE,
		     (shared ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE) | MAP_ANONYMOUS, -1, 0);
	return r < 0 && r > -4096 ? NULL : (void *)r;
}

/* ms < 0: no limit. */
long poll_ms(struct pollfd *p, u32 n, i64 ms)
{
	struct timespec t = {ms / 1000, (ms % 1000) * 1000000};
	return sc5(SYS_ppoll, p, n, ms < 0 ? NULL : &t, NULL, 8);
}

/* Blocks the signals and delivers them through a file descriptor, so that the loop has one place to wait.
 * A blocked signal is queued even for PID 1, which would otherwise never see a default-disposition signal. */
int signal_fd(u64 mask)
{
	sc4(SYS_rt_sigprocmask, 0, &mask, NULL, 8);
	return (int)sc4(SYS_signalfd4, -1, &mask, 8, O_NONBLOCK | O_CLOEXEC);
}

void ignore_signal(int sig)
{
	u64 act[4] = {1, 0, 0, 0}; /* SIG_IGN */
	sc4(SYS_rt_sigaction, sig, act, NULL, 8);
}

/* Reads the beginning of a file and ends it with a NUL. */
long read_small(const char *path, char *buf, usize n)
{
	long fd = sys_open(path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return fd;
	long r = sys_read((int)fd, buf, n - 1);
	sys_close((int)fd);
	if (r >= 0)
		buf[r] = 0;
	return r;
}
