/* Counting the kernel's out-of-memory kills in our cgroup, before and after a run. */
#include "akrun.h"

#define NFILES 4
static char paths[NFILES][512];
static i64 before[NFILES];

/* The number behind "oom_kill " at the start of a line, -1 when there is none. */
static i64 read_counter(const char *path)
{
	char buf[1024];
	if (!*path || read_small(path, buf, sizeof buf) <= 0)
		return -1;
	for (char *p = buf; *p;) {
		if (!memcmp(p, "oom_kill ", 9)) {
			i64 v = 0;
			for (p += 9; *p >= '0' && *p <= '9'; p++)
				v = v * 10 + (*p - '0');
			return v;
		}
		while (*p && *p != '\n')
			p++;
		if (*p)
			p++;
	}
	return -1;
}

/* Whether the comma separated list of controllers names memory. */
static int names_memory(const char *p, const char *end)
{
	while (p < end) {
		const char *q = p;
		while (q < end && *q != ',')
			q++;
		if (q - p == 6 && !memcmp(p, "memory", 6))
			return 1;
		p = q + 1;
	}
	return 0;
}

/* Lines of /proc/self/cgroup are ID:controllers:path; version 2 has ID 0 and no controllers. */
static void own_paths(void)
{
	static char buf[4096];
	if (read_small("/proc/self/cgroup", buf, sizeof buf) <= 0)
		return;
	for (char *line = buf; *line;) {
		char *end = line;
		while (*end && *end != '\n')
			end++;
		int more = *end;
		*end = 0;
		char *ctl = line, *path;
		while (*ctl && *ctl != ':')
			ctl++;
		if (*ctl)
			ctl++;
		path = ctl;
		while (*path && *path != ':')
			path++;
		if (*path && str_len(path) < 400) {
			if (path == ctl)
				put_str(put_str(put_str(paths[1], "/sys/fs/cgroup"), path + 1), "/memory.events");
			else if (names_memory(ctl, path))
				put_str(put_str(put_str(paths[3], "/sys/fs/cgroup/memory"), path + 1),
					"/memory.oom_control");
		}
		line = end + (more ? 1 : 0);
	}
}

void oom_before(void)
{
	/* Inside a container our own cgroup is usually mounted as the root. */
	put_str(paths[0], "/sys/fs/cgroup/memory.events");
	put_str(paths[2], "/sys/fs/cgroup/memory/memory.oom_control");
	own_paths();
	for (int i = 0; i < NFILES; i++)
		before[i] = read_counter(paths[i]);
}

u32 oom_delta(void)
{
	i64 max = 0;
	for (int i = 0; i < NFILES; i++) {
		if (before[i] < 0)
			continue;
		i64 d = read_counter(paths[i]) - before[i];
		if (d > max)
			max = d;
	}
	return max > 0xffffffffl ? 0xffffffffu : (u32)max;
}
