/* Modes for places whose network is closed by somebody else, a moment late: `dial` waits until an address can no
 * longer (or can again) be reached, `listen` is the address. And `run FILE`, which takes the environment of a
 * sandbox from a file that the place cannot show to anybody. */
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
#define EINPROGRESS 115

#define ATTEMPT_MS 1000	 /* an address on the cluster's own network answers within this, or it is closed */
#define PAUSE_MS 50	 /* between two attempts */
#define IN_A_ROW 2	 /* a packet may get lost once */

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

/* 0: it took the connection. Otherwise it did not. */
static int attempt(const struct address *a)
{
	long fd = sc3(SYS_socket, a->family, SOCK_STREAM | O_NONBLOCK | O_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	long r = sc3(SYS_connect, fd, a->bytes, a->size);
	int failed = 1;
	if (r == 0) {
		failed = 0;
	} else if (r == -EINPROGRESS) {
		struct pollfd f = {(int)fd, POLLOUT, 0};
		int err = 0;
		u32 n = sizeof err;
		if (poll_ms(&f, 1, ATTEMPT_MS) > 0 && sc5(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, &err, &n) == 0 && !err)
			failed = 0;
	}
	sys_close((int)fd);
	return failed;
}

/* akrun dial closed|open HOST PORT MILLISECONDS: 0 as soon as it is so, 1 when the time is over */
int dial_main(int argc, char **argv)
{
	struct address a;
	u32 limit;
	if (argc != 6 || parse(argv[3], argv[4], &a) || number(argv[5], 3600000, &limit))
		return 2;
	int want;
	if (str_eq(argv[2], "closed"))
		want = 1;
	else if (str_eq(argv[2], "open"))
		want = 0;
	else
		return 2;
	u64 end = now_ms() + limit;
	for (int row = 0;;) {
		int got = attempt(&a);
		if (got < 0)
			return 4;
		row = got == want ? row + 1 : 0;
		if (row == IN_A_ROW)
			return 0;
		if (now_ms() >= end)
			return 1;
		poll_ms(NULL, 0, PAUSE_MS);
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
