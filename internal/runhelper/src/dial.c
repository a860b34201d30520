/* Modes for places whose network is closed by somebody else, a moment late: `dial` waits until an address can no
 * longer (or can again) be reached, `listen` is the address. And for places that cannot keep the environment of a
 * sandbox to themselves: `gate FILE` waits until it was brought, `run FILE` takes it from there. */
#include "akrun.h"

#if defined(__x86_64__)
#define SYS_socket 41
#define SYS_connect 42
#define SYS_bind 49
#define SYS_listen 50
#define SYS_getsockopt 55
#define SYS_accept4 288
#else
#define SYS_socket 198
#define SYS_bind 200
#define SYS_listen 201
#define SYS_connect 203
#define SYS_getsockopt 209
#define SYS_accept4 242
#endif

#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define SOL_SOCKET 1
#define SO_ERROR 4
#define ENETDOWN 100
#define ENETUNREACH 101
#define ECONNRESET 104
#define ETIMEDOUT 110
#define ECONNREFUSED 111
#define EHOSTDOWN 112
#define EHOSTUNREACH 113
#define EINPROGRESS 115
#define ENOPROTOOPT 92

#define ATTEMPT_MS 1000	 /* an address on the cluster's own network answers within this, or it is closed */
#define OPEN_PAUSE_MS 50 /* between two attempts that look for an open address, ... */
#define IN_A_ROW 2	 /* ... of which so many have to succeed */
#define CLOSED_PAUSE_MS 200  /* between two attempts that look for a closed one, ... */
#define CLOSED_IN_A_ROW 4    /* ... of which so many have to fail, ... */
#define CLOSED_SPAN_MS 2000  /* ... over this time: a network that is being set up fails for a moment, too */

#define GATE_PAUSE_MS 25
#define GATE_LEAVE_MS 10000 /* how long whoever wrote the file of a gate may take to say so */

#define ENV_MAX (1u << 20)

struct address {
	u8 bytes[28]; /* a sockaddr_in or sockaddr_in6 */
	u32 size;
	int family;
};

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

static int number(const char *p, u32 max, u32 *v)
{
	for (*v = 0; *p; p++) {
		if (*p < '0' || *p > '9' || *v > max)
			return -1;
		*v = *v * 10 + (u32)(*p - '0');
	}
	return *v > max ? -1 : 0;
}

/* host: 8 or 32 hexadecimal digits */
static int parse(const char *host, const char *port, struct address *a)
{
	usize n = str_len(host);
	u32 p;
	memset(a, 0, sizeof *a);
	if ((n != 8 && n != 32) || number(port, 65535, &p) || !p)
		return -1;
	a->family = n == 8 ? AF_INET : AF_INET6;
	a->size = n == 8 ? 16 : 28;
	a->bytes[0] = (u8)a->family;
	a->bytes[2] = (u8)(p >> 8);
	a->bytes[3] = (u8)p;
	u8 *to = a->bytes + (n == 8 ? 4 : 8);
	for (usize i = 0; i < n; i += 2) {
		int high = hex_digit(host[i]), low = hex_digit(host[i + 1]);
		if (high < 0 || low < 0)
			return -1;
		*to++ = (u8)(high << 4 | low);
	}
	return 0;
}

enum { UNCLEAR = -1, OPEN, CLOSED };

/* What the network says to an attempt. A failure that this machine is the reason of says nothing about it. */
static int verdict(long err)
{
	switch (err) {
	case 0:
		return OPEN;
	case EPERM:
	case EACCES: /* a filter on the way out */
	case ENOPROTOOPT:
	case ENETDOWN:
	case ENETUNREACH:
	case ECONNRESET:
	case ETIMEDOUT:
	case ECONNREFUSED:
	case EHOSTDOWN:
	case EHOSTUNREACH:
		return CLOSED;
	}
	return UNCLEAR;
}

static int attempt(const struct address *a)
{
	long fd = sc3(SYS_socket, a->family, SOCK_STREAM | O_NONBLOCK | O_CLOEXEC, 0);
	if (fd < 0)
		return UNCLEAR;
	long r = sc3(SYS_connect, fd, a->bytes, a->size);
	int got;
	if (r == -EINPROGRESS) {
		struct pollfd f = {(int)fd, POLLOUT, 0};
		int err = 0;
		u32 n = sizeof err;
		long ready = poll_ms(&f, 1, ATTEMPT_MS);
		if (ready == 0)
			got = CLOSED;
		else if (ready < 0 || sc5(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, &err, &n) < 0)
			got = UNCLEAR;
		else
			got = verdict(err);
	} else {
		got = verdict(-r);
	}
	sys_close((int)fd);
	return got;
}

/* akrun dial closed|open HOST PORT MILLISECONDS: 0 and the word ok as soon as it is so, 1 when the time is over, 4
 * when nothing can be said. The words are for callers whose way of asking can lose a status: none is no yes, and a
 * first one says that there is somebody who will answer. */
int dial_main(int argc, char **argv)
{
	struct address a;
	u32 limit;
	if (argc != 6 || parse(argv[3], argv[4], &a) || number(argv[5], 3600000, &limit))
		return 2;
	int want;
	if (str_eq(argv[2], "closed"))
		want = CLOSED;
	else if (str_eq(argv[2], "open"))
		want = OPEN;
	else
		return 2;
	if (sys_write(1, "dialing\n", 8) != 8)
		return 4;
	u64 end = now_ms() + limit, first = 0;
	for (u32 row = 0;;) {
		u64 begun = now_ms();
		int got = attempt(&a);
		if (got != want)
			row = 0;
		else if (!row++)
			first = begun;
		if (want == OPEN ? row >= IN_A_ROW : row >= CLOSED_IN_A_ROW && now_ms() - first >= CLOSED_SPAN_MS)
			return sys_write(1, "ok\n", 3) == 3 ? 0 : 4;
		/* A row that has begun may become long enough. */
		if (now_ms() >= end && (!row || now_ms() >= end + 2 * CLOSED_SPAN_MS))
			return got == UNCLEAR ? 4 : 1;
		poll_ms(NULL, 0, want == OPEN ? OPEN_PAUSE_MS : CLOSED_PAUSE_MS);
	}
}

/* akrun gate FILE: the first container of a pod that is not started before its environment is there. Ends with 0 once
 * FILE exists and whoever wrote it has gone, so that the writer's answer is not cut off; with 143 when told to end. */
int gate_main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	int sig = signal_fd(SIGBIT(SIGTERM) | SIGBIT(SIGINT) | SIGBIT(SIGCHLD));
	if (sig < 0)
		return 4;
	sys_prctl(PR_SET_DUMPABLE, 0);
	for (u64 leave = 0;;) {
		reap(NULL);
		long fd = leave ? 0 : sys_open(argv[2], O_RDONLY | O_CLOEXEC, 0);
		if (!leave && fd >= 0) {
			sys_close((int)fd);
			leave = now_ms() + GATE_LEAVE_MS;
		}
		/* As PID 1 it is not among those that are asked for. */
		if (leave && (now_ms() >= leave || sys_kill(-1, 0) == -ESRCH))
			return 0;
		struct pollfd f = {sig, POLLIN, 0};
		poll_ms(&f, 1, GATE_PAUSE_MS);
		u8 info[128];
		while (sys_read(sig, info, sizeof info) == sizeof info)
			if (get32(info) == SIGTERM || get32(info) == SIGINT)
				return 128 + SIGTERM;
	}
}

/* akrun listen PORT: takes every connection and closes it, until it is told to end */
int listen_main(int argc, char **argv)
{
	u32 port;
	if (argc != 3 || number(argv[2], 65535, &port) || !port)
		return 2;
	int sig = signal_fd(SIGBIT(SIGTERM) | SIGBIT(SIGINT) | SIGBIT(SIGCHLD));
	struct address a;
	memset(&a, 0, sizeof a);
	a.bytes[2] = (u8)(port >> 8);
	a.bytes[3] = (u8)port;
	/* An IPv6 socket takes both kinds; a kernel without IPv6 has only the other one. */
	a.bytes[0] = AF_INET6;
	long fd = sc3(SYS_socket, AF_INET6, SOCK_STREAM | O_NONBLOCK | O_CLOEXEC, 0);
	if (fd < 0 || sc3(SYS_bind, fd, a.bytes, 28) < 0) {
		a.bytes[0] = AF_INET;
		fd = sc3(SYS_socket, AF_INET, SOCK_STREAM | O_NONBLOCK | O_CLOEXEC, 0);
		if (fd < 0 || sc3(SYS_bind, fd, a.bytes, 16) < 0)
			return 4;
	}
	if (sc2(SYS_listen, fd, 4096) < 0 || sig < 0)
		return 4;
	for (;;) {
		struct pollfd f[2] = {{(int)fd, POLLIN, 0}, {sig, POLLIN, 0}};
		poll_ms(f, 2, -1);
		u8 info[128];
		while (sys_read(sig, info, sizeof info) == sizeof info)
			if (get32(info) == SIGTERM || get32(info) == SIGINT)
				return 0;
		reap(NULL);
		for (long c; (c = sc4(SYS_accept4, fd, NULL, NULL, O_CLOEXEC)) >= 0;)
			sys_close((int)c);
	}
}

/* akrun pod: init, with an end that cannot be taken for success. The node of a cluster tells why it ended a pod only
 * when the pod's first process did not end with 0. */
int pod_main(int argc, char **argv)
{
	int code = init_main(argc, argv);
	return code ? code : 128 + SIGTERM;
}

static int same_name(const char *a, const char *b)
{
	while (*a && *a != '=' && *a == *b)
		a++, b++;
	return *a == '=' && *b == '=';
}

/* akrun run FILE: the variables of FILE (KEY=VALUE, each ended by a NUL) over those of the process */
int run_file_main(const char *file, char **env)
{
	long fd = sys_open(file, O_RDONLY | O_CLOEXEC, 0);
	char *text = map_memory(ENV_MAX + 1, 0);
	if (fd < 0 || !text)
		return 4;
	usize n = 0, count = 0, old = 0, vars = 0;
	for (long r; n < ENV_MAX && (r = sys_read((int)fd, text + n, ENV_MAX - n)) > 0; n += (usize)r)
		;
	sys_close((int)fd);
	if (n == ENV_MAX)
		return 4;
	for (usize i = 0; i < n; i++)
		count += !text[i];
	while (env[old])
		old++;
	char **all = map_memory((count + old + 2) * sizeof *all, 0);
	if (!all)
		return 4;
	for (usize i = 0; i < n; i += str_len(text + i) + 1)
		all[vars++] = text + i;
	usize from_file = vars;
	for (usize i = 0; i < old; i++) {
		int hidden = 0;
		for (usize k = 0; k < from_file && !hidden; k++)
			hidden = same_name(env[i], all[k]);
		if (!hidden)
			all[vars++] = env[i];
	}
	all[vars] = NULL;
	return run_main(all);
}
