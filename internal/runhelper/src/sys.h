/* Raw Linux system calls for x86_64 and aarch64, and the few kernel constants that the helper needs.
 * No system header is included: what the compiler produces depends on the compiler alone. */
#ifndef AKRUN_SYS_H
#define AKRUN_SYS_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long u64;
typedef long i64;
typedef unsigned long usize;

#define NULL ((void *)0)

#if defined(__x86_64__)
#define SYS_read 0
#define SYS_write 1
#define SYS_close 3
#define SYS_fstat 5
#define SYS_mmap 9
#define SYS_munmap 11
#define SYS_rt_sigaction 13
#define SYS_rt_sigprocmask 14
#define SYS_ioctl 16
#define SYS_sched_yield 24
#define SYS_getpid 39
#define SYS_clone 56
#define SYS_execve 59
#define SYS_wait4 61
#define SYS_kill 62
#define SYS_fcntl 72
#define SYS_chdir 80
#define SYS_fchmod 91
#define SYS_getppid 110
#define SYS_setsid 112
#define SYS_prctl 157
#define SYS_getdents64 217
#define SYS_clock_gettime 228
#define SYS_exit_group 231
#define SYS_openat 257
#define SYS_mkdirat 258
#define SYS_newfstatat 262
#define SYS_unlinkat 263
#define SYS_renameat 264
#define SYS_readlinkat 267
#define SYS_faccessat 269
#define SYS_ppoll 271
#define SYS_signalfd4 289
#define SYS_dup3 292
#define SYS_pipe2 293
#define SYS_prlimit64 302
#define SYS_memfd_create 319
#define O_DIRECTORY 0200000
#define O_NOFOLLOW 0400000
#elif defined(__aarch64__)
#define SYS_dup3 24
#define SYS_fcntl 25
#define SYS_ioctl 29
#define SYS_mkdirat 34
#define SYS_unlinkat 35
#define SYS_renameat 38
#define SYS_faccessat 48
#define SYS_chdir 49
#define SYS_fchmod 52
#define SYS_openat 56
#define SYS_close 57
#define SYS_pipe2 59
#define SYS_getdents64 61
#define SYS_read 63
#define SYS_write 64
#define SYS_ppoll 73
#define SYS_signalfd4 74
#define SYS_readlinkat 78
#define SYS_newfstatat 79
#define SYS_fstat 80
#define SYS_exit_group 94
#define SYS_clock_gettime 113
#define SYS_sched_yield 124
#define SYS_kill 129
#define SYS_rt_sigaction 134
#define SYS_rt_sigprocmask 135
#define SYS_setsid 157
#define SYS_prctl 167
#define SYS_getpid 172
#define SYS_getppid 173
#define SYS_munmap 215
#define SYS_clone 220
#define SYS_execve 221
#define SYS_mmap 222
#define SYS_wait4 260
#define SYS_prlimit64 261
#define SYS_memfd_create 279
#define O_DIRECTORY 040000
#define O_NOFOLLOW 0100000
#else
#error "only x86_64 and aarch64"
#endif
#define SYS_pidfd_send_signal 424
#define SYS_pidfd_open 434
#define SYS_close_range 436

#if defined(__x86_64__)
static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
	long r;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return r;
}
#else
static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;
	__asm__ volatile("svc #0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory", "cc");
	return x0;
}
#endif
#define sc0(n) sys6(n, 0, 0, 0, 0, 0, 0)
#define sc1(n, a) sys6(n, (long)(a), 0, 0, 0, 0, 0)
#define sc2(n, a, b) sys6(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define sc3(n, a, b, c) sys6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define sc4(n, a, b, c, d) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define sc5(n, a, b, c, d, e) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define sc6(n, a, b, c, d, e, f) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

#define EPERM 1
#define ENOENT 2
#define ESRCH 3
#define EINTR 4
#define ENOEXEC 8
#define ECHILD 10
#define EAGAIN 11
#define ENOMEM 12
#define EACCES 13
#define EEXIST 17
#define ENOTDIR 20
#define EISDIR 21
#define EINVAL 22
#define EFBIG 27
#define E2BIG 7
#define EPIPE 32
#define ENAMETOOLONG 36
#define ENOSYS 38
#define ELOOP 40
#define EPROTO 71

#define AT_FDCWD (-100)
#define AT_SYMLINK_NOFOLLOW 0x100
#define O_RDONLY 0
#define O_WRONLY 1
#define O_RDWR 2
#define O_CREAT 0100
#define O_EXCL 0200
#define O_NOCTTY 0400
#define O_NONBLOCK 04000
#define O_CLOEXEC 02000000
#define O_TMPFILE (020000000 | O_DIRECTORY)

#define F_GETFL 3
#define F_SETFL 4
#define F_GETFD 1
#define F_DUPFD_CLOEXEC 1030
#define F_SETPIPE_SZ 1031
#define FIONREAD 0x541B

#define MFD_CLOEXEC 1u
#define MFD_NOEXEC_SEAL 8u

#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_SHARED 1
#define MAP_PRIVATE 2
#define MAP_ANONYMOUS 0x20
#define MAP_NORESERVE 0x4000

#define POLLIN 1
#define POLLOUT 4
#define POLLERR 8
#define POLLHUP 16
#define POLLNVAL 32

#define SIGHUP 1
#define SIGINT 2
#define SIGKILL 9
#define SIGUSR1 10
#define SIGPIPE 13
#define SIGTERM 15
#define SIGCHLD 17
#define SIGCONT 18
#define SIGSTOP 19

#define WNOHANG 1
#define WUNTRACED 2
#define WALL 0x40000000

#define PR_SET_PDEATHSIG 1
#define PR_SET_DUMPABLE 4
#define PR_SET_NAME 15
#define PR_SET_CHILD_SUBREAPER 36

#define RLIMIT_CORE 4

#define S_IFMT 0170000
#define S_IFREG 0100000
#define S_IFDIR 0040000
#define S_IFLNK 0120000

struct pollfd {
	i32 fd;
	short events, revents;
};
struct timespec {
	i64 sec, nsec;
};
struct kstat {
#if defined(__x86_64__)
	u64 dev, ino, nlink;
	u32 mode, uid, gid, pad0;
	u64 rdev;
	i64 size, blksize, blocks;
#else
	u64 dev, ino;
	u32 mode, nlink, uid, gid;
	u64 rdev, pad1;
	i64 size;
	i32 blksize, pad2;
	i64 blocks;
#endif
	i64 atime, atime_nsec, mtime, mtime_nsec, ctime, ctime_nsec;
	i64 unused[3];
};

static inline long sys_read(int fd, void *p, usize n) { return sc3(SYS_read, fd, p, n); }
static inline long sys_write(int fd, const void *p, usize n) { return sc3(SYS_write, fd, p, n); }
static inline long sys_close(int fd) { return sc1(SYS_close, fd); }
static inline long sys_open(const char *p, int flags, int mode)
{
	return sc4(SYS_openat, AT_FDCWD, p, flags, mode);
}
static inline long sys_kill(int pid, int sig) { return sc2(SYS_kill, pid, sig); }
static inline int sys_getpid(void) { return (int)sc0(SYS_getpid); }
static inline int sys_getppid(void) { return (int)sc0(SYS_getppid); }
static inline long sys_fork(void) { return sc5(SYS_clone, SIGCHLD, 0, 0, 0, 0); }
static inline long sys_wait(int *status, int flags) { return sc4(SYS_wait4, -1, status, flags, 0); }
static inline long sys_fcntl(int fd, int op, long arg) { return sc3(SYS_fcntl, fd, op, arg); }
static inline long sys_prctl(int op, long a) { return sc5(SYS_prctl, op, a, 0, 0, 0); }
static inline void __attribute__((noreturn)) sys_exit(int code)
{
	for (;;)
		sc1(SYS_exit_group, code);
}

#endif
