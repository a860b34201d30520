/* Shared declarations of akrun. See ../doc.go for the protocol. */
#ifndef AKRUN_H
#define AKRUN_H
#include "sys.h"

#define PROTOCOL_VERSION 1u
#define CHUNK 65536u		/* largest payload of a data frame, either direction */
#define OUT_CHUNK (CHUNK - 5u)	/* our data frames: header and payload fill one default pipe exactly */
#define ARG_MAX_LEN 131071u	/* longest argv or environment element (the kernel's own limit, less the NUL) */
#define CREDIT 65536u		/* stdin bytes that the client may have outstanding */

#define SETUP_IDLE_MS 60000	/* a client that sends nothing for this long before 'G' is gone */
#define FILE_IDLE_MS 300000	/* the same for file operations */
#define LINGER_MS 50		/* what the main process left behind may finish its last words, ... */
#define LINGER_MORE_MS 25	/* ... in steps of this while it is busy, ... */
#define LINGER_MAX_MS 500	/* ... and no longer than this in all */
#define KILL_BUDGET_MS 5000	/* how long killing may take before it is reported as incomplete */
#define FINISH_KILLED_MS 5000	/* after a kill: time for the client to take what is left */
#define FINISH_STALL_MS 30000	/* after an ordinary end: time without any progress */

/* flags of 'P' */
#define P_CLEAR_ENV 1u
#define P_KEEP 2u
#define P_STDIN 4u
/* flags of 'X' */
#define X_TIMED_OUT 1u
#define X_KILLED 2u
#define X_CONTROL_LOST 4u
#define X_OOM 8u
#define X_SUPERVISOR_LOST 16u
#define X_INCOMPLETE 32u /* something may have survived the killing */
#define X_BACKGROUND 64u /* background processes were left running, as asked */
#define X_TERMINATED 128u /* the supervisor was told to stop by a signal */

/* The frame that is being written. It lies in memory shared with the guard, which can finish a frame
 * that a killed supervisor left half written. */
struct outq {
	volatile u32 off, len;
	volatile u32 in_write; /* set around write(2): off is not reliable while it is set */
	volatile u32 ended;    /* 'X', 'N' or a file operation's answer is out */
	volatile u32 detached; /* the run is over and its background processes are kept */
	i32 guard;	       /* pid of the guard, 0 when there is none */
	u8 buf[5 + CHUNK];
};
extern struct outq *oq;

/* lib.c */
void *memcpy(void *d, const void *s, usize n);
void *memmove(void *d, const void *s, usize n);
void *memset(void *d, int c, usize n);
int memcmp(const void *a, const void *b, usize n);
usize str_len(const char *s);
int str_eq(const char *a, const char *b);
char *put_str(char *p, const char *s);
char *put_num(char *p, u64 v);
void put32(u8 *p, u32 v);
void put64(u8 *p, u64 v);
u32 get32(const u8 *p);
u64 get64(const u8 *p);
u64 now_ms(void);
void *map_memory(usize n, int shared);
long poll_ms(struct pollfd *p, u32 n, i64 ms);
int signal_fd(u64 mask);
void ignore_signal(int sig);
long read_small(const char *path, char *buf, usize n);

/* frames.c */
int in_exact(void *buf, u32 n, i64 idle_ms);
int in_header(u8 *type, u32 *len, i64 idle_ms);
void out_frame(u8 type, const void *payload, u32 n);
int out_flush(void);
int out_drain(i64 stall_ms);
void out_hello(void);
void set_nonblocking(int fd);

/* proc.c */
struct kill_result {
	u32 killed;	/* descendants that died of our SIGKILL, the main process not counted */
	int incomplete; /* something may be alive still */
};
extern int main_pid;	/* main process of the run, 0 when there is none */
extern int main_done;	/* it was reaped */
extern int main_status; /* its wait status */
int reap(u32 *killed);	/* reaps what is there; 0 when no child is left */
void kill_tree(struct kill_result *r, int whole_namespace);
void kill_stopped_supervisors(void);
int proc_is_ours(void);
int tree_busy(void);

/* oom.c */
void oom_before(void);
u32 oom_delta(void);

/* child.c */
struct child_request {
	char **argv, **envp, **alts;
	u32 nalts;
	const char *dir;
	int in, out, err, blob, report; /* blob and in may be -1 */
};
void child_main(const struct child_request *c) __attribute__((noreturn));
struct child_report {
	u32 kind; /* 0: about to try alternative `index`; 1: failed */
	u32 index, err, stage;
};
#define STAGE_SETUP 0u
#define STAGE_CHDIR 1u
#define STAGE_EXEC 2u
#define STAGE_INTERPRETER 3u
#define STAGE_FORK 4u
#define STAGE_MEMFD 5u
#define STAGE_PIPE 6u
#define STAGE_ARGUMENTS 7u
#define STAGE_PROTOCOL 8u
#define STAGE_SUBREAPER 9u

/* modes */
int run_main(char **env);
int init_main(int argc, char **argv);
int guard_main(char **env);
int pod_main(int argc, char **argv);
int dial_main(int argc, char **argv);
int listen_main(int argc, char **argv);
int gate_main(int argc, char **argv);
int run_file_main(const char *file, char **env);
/* file.c: 1 when the frame was a file operation (answered completely) */
int file_operation(u8 type, u32 len);

#define SIGBIT(s) (1ul << ((s)-1))
#endif
