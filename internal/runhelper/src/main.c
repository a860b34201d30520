/* akrun: starts, watches and kills runs inside sandboxes. */
#include "akrun.h"

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp,%ebp\n\tmov %rsp,%rdi\n\tand $-16,%rsp\n\tcall akrun_main\n\thlt\n");
#else
__asm__(".globl _start\n_start:\n\tmov x29,#0\n\tmov x30,#0\n\tmov x0,sp\n\tand sp,x0,#-16\n\tbl akrun_main\n");
#endif

static struct outq own_queue;

/* stack: argc, argv, NULL, envp, NULL */
void akrun_main(long *stack);
void akrun_main(long *stack)
{
	int argc = (int)stack[0];
	char **argv = (char **)(stack + 1);
	char **env = argv + argc + 1;
	/* A closed standard descriptor would be taken by the next open file. */
	for (int fd = 0; fd < 3; fd++)
		if (sys_fcntl(fd, F_GETFD, 0) < 0)
			sys_open("/dev/null", O_RDWR, 0);
	sys_prctl(PR_SET_NAME, (long)"akrun"); /* init knows supervisors by it, whatever the file is called */
	oq = &own_queue;
	int code = 2;
	if (argc >= 2 && str_eq(argv[1], "init"))
		code = init_main(argc, argv);
	else if (argc == 2 && str_eq(argv[1], "run"))
		code = run_main(env);
	else if (argc == 2 && str_eq(argv[1], "guard"))
		code = guard_main(env);
	else if (argc == 3 && str_eq(argv[1], "run"))
		code = run_file_main(argv[2], env);
	else if (argc >= 2 && str_eq(argv[1], "pod"))
		code = pod_main(argc, argv);
	else if (argc >= 2 && str_eq(argv[1], "dial"))
		code = dial_main(argc, argv);
	else if (argc >= 2 && str_eq(argv[1], "listen"))
		code = listen_main(argc, argv);
	else if (argc >= 2 && str_eq(argv[1], "gate"))
		code = gate_main(argc, argv);
	sys_exit(code);
}
