/* Frames: one byte type, four bytes length (little endian), payload. In on fd 0, out on fd 1. */
#include "akrun.h"

struct outq *oq;

void set_nonblocking(int fd)
{
	long fl = sys_fcntl(fd, F_GETFL, 0);
	if (fl >= 0)
		sys_fcntl(fd, F_SETFL, fl | O_NONBLOCK);
}

/* Reads exactly n bytes. 0 on end of file, error, or when nothing came for idle_ms. */
int in_exact(void *buf, u32 n, i64 idle_ms)
{
	u8 *p = buf;
	while (n) {
		long r = sys_read(0, p, n);
		if (r > 0) {
			p += r;
			n -= (u32)r;
			continue;
		}
		if (r == 0)
			return 0;
		if (r == -EINTR)
			continue;
		if (r != -EAGAIN)
			return 0;
		struct pollfd f = {0, POLLIN, 0};
		if (poll_ms(&f, 1, idle_ms) == 0)
			return 0;
	}
	return 1;
}

int in_header(u8 *type, u32 *len, i64 idle_ms)
{
	u8 h[5];
	if (!in_exact(h, 5, idle_ms))
		return 0;
	*type = h[0];
	*len = get32(h + 1);
	return 1;
}

/* Queues one frame. The queue must be empty; payload NULL: it already lies in oq->buf + 5. */
void out_frame(u8 type, const void *payload, u32 n)
{
	oq->buf[0] = type;
	put32(oq->buf + 1, n);
	if (payload)
		memcpy(oq->buf + 5, payload, n);
	oq->off = 0;
	oq->len = n + 5;
}

/* Writes what can be written now. 1: queue empty, 0: the client does not read, -1: nobody reads any more. */
int out_flush(void)
{
	while (oq->off < oq->len) {
		oq->in_write = 1;
		long r = sys_write(1, oq->buf + oq->off, oq->len - oq->off);
		if (r > 0)
			oq->off += (u32)r;
		oq->in_write = 0;
		if (r == -EAGAIN)
			return 0;
		if (r <= 0 && r != -EINTR)
			return -1;
	}
	return 1;
}

/* Writes the whole queue, waiting at most stall_ms for each bit of progress. 1 on success. */
int out_drain(i64 stall_ms)
{
	for (;;) {
		int r = out_flush();
		if (r)
			return r > 0;
		struct pollfd f = {1, POLLOUT, 0};
		if (poll_ms(&f, 1, stall_ms) == 0)
			return 0;
	}
}

void out_hello(void)
{
	u8 h[8];
	put32(h, PROTOCOL_VERSION);
	put32(h + 4, (u32)sys_getpid());
	out_frame('H', h, 8);
	if (!out_drain(SETUP_IDLE_MS))
		sys_exit(3);
}
