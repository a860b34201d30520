/* Finding and killing every descendant. No fork, no thread, a linear scan: this must work when the pids
 * limit is reached and while a fork bomb is running. */
#include "akrun.h"

struct proc {
	i32 pid, ppid;
	u64 start; /* start time: with the pid it names a process for good */
	u32 threads;
	u8 state, mark;
};
enum { UNKNOWN, OURS, FOREIGN, VISITING };

#define FIRST_CAP 1024u
static struct proc first_tab[FIRST_CAP];
static i32 first_hash[FIRST_CAP * 2];
static struct proc *tab = first_tab;
static i32 *hash = first_hash; /* index + 1, open addressing; cap * 2 slots */
static u32 cap = FIRST_CAP, ntab;
static u8 dents[32768] __attribute__((aligned(8)));

int main_pid, main_done, main_status;

static u32 slot_of(i32 pid)
{
	return ((u32)pid * 2654435761u) & (cap * 2 - 1);
}

/* A table that cannot grow is not fatal: the caller scans again after it has killed what it saw. */
static int grow(void)
{
	u32 ncap = cap * 4;
	struct proc *nt = map_memory(ncap * sizeof *nt, 0);
	i32 *nh = map_memory(ncap * 2 * sizeof *nh, 0);
	if (!nt || !nh)
		return 0;
	memcpy(nt, tab, ntab * sizeof *nt);
	tab = nt;
	hash = nh;
	cap = ncap;
	return 1;
}

/* Reads /proc/PID/stat. The name may hold spaces and brackets, so fields count from the last bracket. */
static int read_stat(i32 pid, struct proc *p)
{
	char path[40], buf[1024];
	put_str(put_num(put_str(path, "/proc/"), (u64)pid), "/stat");
	long n = read_small(path, buf, sizeof buf);
	if (n <= 0)
		return 0;
	char *q = buf + n;
	while (q > buf && *q != ')')
		q--;
	if (q == buf || q[1] != ' ')
		return 0;
	p->pid = pid;
	p->state = (u8)q[2];
	p->mark = UNKNOWN;
	q += 3;
	u64 v = 0;
	for (int field = 4; field <= 22; field++) {
		while (*q == ' ')
			q++;
		if (!*q)
			return 0;
		for (v = 0; *q >= '0' && *q <= '9'; q++)
			v = v * 10 + (u64)(*q - '0');
		while (*q && *q != ' ') /* negative numbers: not one of ours */
			q++;
		if (field == 4)
			p->ppid = (i32)v;
		else if (field == 20)
			p->threads = (u32)v;
	}
	p->start = v;
	return 1;
}

/* Whether /proc shows the pid namespace that we live in. Another one would name other processes. */
int proc_is_ours(void)
{
	char link[32], own[32];
	long n = sc4(SYS_readlinkat, AT_FDCWD, "/proc/self", link, sizeof link - 1);
	if (n <= 0)
		return 0;
	link[n] = 0;
	put_num(own, (u64)sys_getpid());
	return str_eq(link, own);
}

/* Fills the table with all processes. 0 when /proc cannot be read. */
static int scan(void)
{
	ntab = 0;
	long fd = sys_open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	for (;;) {
		long n = sc3(SYS_getdents64, fd, dents, sizeof dents);
		if (n <= 0)
			break;
		for (long o = 0; o < n;) {
			u16 reclen;
			memcpy(&reclen, dents + o + 16, 2);
			const char *name = (const char *)dents + o + 19;
			o += reclen;
			i64 pid = 0;
			while (*name >= '0' && *name <= '9' && pid < 100000000)
				pid = pid * 10 + (*name++ - '0');
			if (*name || !pid)
				continue;
			if (ntab == cap && !grow())
				break;
			if (read_stat((i32)pid, &tab[ntab]))
				ntab++;
		}
	}
	sys_close((int)fd);
	memset(hash, 0, cap * 2 * sizeof *hash);
	for (u32 i = 0; i < ntab; i++) {
		u32 s = slot_of(tab[i].pid);
		while (hash[s])
			s = (s + 1) & (cap * 2 - 1);
		hash[s] = (i32)i + 1;
	}
	return 1;
}

static struct proc *lookup(i32 pid)
{
	for (u32 s = slot_of(pid); hash[s]; s = (s + 1) & (cap * 2 - 1))
		if (tab[hash[s] - 1].pid == pid)
			return &tab[hash[s] - 1];
	return NULL;
}

/* Marks descendants of self. Each chain of parents is walked until a known process, so the whole is linear. */
static void mark_descendants(i32 self)
{
	for (u32 i = 0; i < ntab; i++) {
		struct proc *p = &tab[i];
		u8 verdict = UNKNOWN;
		while (verdict == UNKNOWN) {
			if (p->mark != UNKNOWN) {
				/* VISITING: a pid was reused during the scan and made a circle */
				verdict = p->mark == OURS ? OURS : FOREIGN;
				break;
			}
			p->mark = VISITING;
			if (p->pid == self || p->ppid == 0)
				verdict = FOREIGN;
			else if (p->ppid == self)
				verdict = OURS;
			else if (!(p = lookup(p->ppid)))
				verdict = FOREIGN;
		}
		for (p = &tab[i]; p && p->mark == VISITING; p = lookup(p->ppid))
			p->mark = verdict;
	}
}

/* Signals a process of the table, and no other one that got its pid since the scan. A direct child keeps its
 * pid until we reap it. Anything else is held by a pidfd while its start time is checked again. */
static long signal_proc(const struct proc *p, int sig, i32 self)
{
	if (p->ppid == self)
		return sys_kill(p->pid, sig);
	long fd = sc2(SYS_pidfd_open, p->pid, 0);
	if (fd == -ESRCH)
		return fd;
	struct proc again;
	int same = read_stat(p->pid, &again) && again.start == p->start;
	long r = -ESRCH;
	if (same) {
		r = fd >= 0 ? sc4(SYS_pidfd_send_signal, fd, sig, NULL, 0) : -ENOSYS;
		if (r == -ENOSYS || r == -EPERM)
			r = sys_kill(p->pid, sig);
	}
	if (fd >= 0)
		sys_close((int)fd);
	return r;
}

/* Reaps every child that ended. 0 when there is no child at all any more: every descendant whose parent died
 * is a child of ours, so this means that nothing below us is left, and it costs no scan. */
int reap(u32 *killed)
{
	for (;;) {
		int st = 0;
		long pid = sys_wait(&st, WNOHANG | WALL);
		if (pid == -EINTR)
			continue;
		if (pid == 0)
			return 1;
		if (pid < 0)
			return 0;
		if (pid == main_pid && !main_done) {
			main_done = 1;
			main_status = st;
		} else if (killed && (st & 0x7f) == SIGKILL) {
			++*killed;
		}
	}
}

/* A process whose first thread ended shows as a zombie while its other threads run on. */
static int alive(const struct proc *p)
{
	return p->mark == OURS && ((p->state != 'Z' && p->state != 'X') || p->threads > 1);
}

/* Whether a descendant is running, is about to, or waits for a disk. What only sleeps has nothing to say. */
int tree_busy(void)
{
	if (!proc_is_ours() || !scan())
		return 0;
	mark_descendants(sys_getpid());
	for (u32 i = 0; i < ntab; i++)
		if (tab[i].mark == OURS && (tab[i].state == 'R' || tab[i].state == 'D'))
			return 1;
	return 0;
}

/* Stops, then kills, then reaps everything below us.
 *
 * Stop first: a process with a signal pending cannot complete a fork, so once a scan finds nobody who is
 * still running, the set no longer grows. Killing in the first scan would race a fork bomb.
 *
 * whole_namespace: we are PID 1 and every other process of the namespace belongs to the run; the kernel
 * then kills them all in one step. */
void kill_tree(struct kill_result *r, int whole_namespace)
{
	i32 self = sys_getpid();
	u64 until = now_ms() + KILL_BUDGET_MS;
	i64 pause = 1;
	r->killed = 0;
	r->incomplete = 0;
	if (!reap(NULL))
		return;
	int visible = !whole_namespace && proc_is_ours();
	if (visible)
		for (int round = 0; round < 24; round++) {
			u32 running = 0;
			if (!scan())
				break;
			mark_descendants(self);
			for (u32 i = 0; i < ntab; i++)
				if (alive(&tab[i]) && tab[i].state != 'T' && tab[i].state != 't')
					running += signal_proc(&tab[i], SIGSTOP, self) >= 0;
			if (!running)
				break;
			sc0(SYS_sched_yield);
		}
	for (;;) {
		if (whole_namespace) {
			sys_kill(-1, SIGKILL);
		} else if (visible && scan()) {
			mark_descendants(self);
			for (u32 i = 0; i < ntab; i++)
				if (alive(&tab[i]))
					signal_proc(&tab[i], SIGKILL, self);
		} else if (main_pid && !main_done) {
			/* Without /proc only the main process and its group can be named. */
			sys_kill(-main_pid, SIGKILL);
			sys_kill(main_pid, SIGKILL);
		}
		if (!reap(&r->killed))
			return;
		if (now_ms() >= until || (!visible && !whole_namespace && main_done)) {
			r->incomplete = 1;
			return;
		}
		poll_ms(NULL, 0, pause);
		if (!reap(&r->killed))
			return;
		if (pause < 16)
			pause *= 2;
	}
}

/* For init: a supervisor that was stopped cannot keep its promises. Killing it makes its processes ours.
 * Supervisors are started by the engine from outside: their parent is 0 here. */
void kill_stopped_supervisors(void)
{
	if (!proc_is_ours() || !scan())
		return;
	for (u32 i = 0; i < ntab; i++) {
		char path[40], name[32];
		if (tab[i].ppid != 0 || tab[i].pid == 1 || tab[i].state != 'T')
			continue;
		put_str(put_num(put_str(path, "/proc/"), (u64)tab[i].pid), "/comm");
		if (read_small(path, name, sizeof name) > 0 && !memcmp(name, "akrun", 5))
			signal_proc(&tab[i], SIGKILL, 1);
	}
}
