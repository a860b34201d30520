package e2b

// Shell text that runs inside the sandbox. It needs sh and grep, of which every template has some kind. The program, its
// arguments, code and environment never become part of the text: they are arguments, files and variables.

// runVariable marks every process of a run: it inherits it unless it drops its environment.
const runVariable = "AGENTKERNEL_RUN"

// markLine opens a text on stderr that is the wrapper's and not the program's.
const markLine = "agentkernel-run:"

// markWords are what can follow on that line, and markStatus is the exit status that comes with it.
var markWords = []string{"code", "chdir", "program"}

const markStatus = 125

// wrapper prepares a run and becomes its program, so that exit status and signals are the program's own.
//
//	$1 run id   $2 working directory or empty   $3 limit in seconds   $4 "input" or "none"   $5 code file or empty   $6... program
//
// A program that cannot be started is told by a marked line on stderr, before anything ran. Beside the program, and not as
// its child (a program that waits for all its children must not wait for it), runs a watcher: when the program is dead,
// or the limit over although nobody else ended the run, it ends everything that carries the run's mark. Without it a
// child that holds stdout would hold up envd's end event, and a run whose provider died would outlive its limit.
const wrapper = `run=$1 dir=$2 limit=$3 input=$4 code=$5
shift 5
fail() { printf '%s%s:%s\n' '` + markLine + `' "$run" "$1" >&2; exit 125; }
if [ -n "$code" ]; then [ -r "$code" ] || fail code; exec 3<"$code"; rm -f -- "$code"; fi
case $dir in
'') ;;
/*) CDPATH= cd -- "$dir" 2>/dev/null || fail chdir ;;
*) CDPATH= cd -- "./$dir" 2>/dev/null || fail chdir ;;
esac
found=
case $1 in
*/*) [ -f "$1" ] && [ -x "$1" ] && found=1 ;;
*) rest=$PATH:
	while [ -n "$rest" ]; do
		d=${rest%%:*} rest=${rest#*:}
		if [ -f "${d:-.}/$1" ] && [ -x "${d:-.}/$1" ]; then found=1; break; fi
	done ;;
esac
[ -n "$found" ] || fail program
export PYTHONPATH="$HOME/.agentkernel/packages${PYTHONPATH:+:$PYTHONPATH}"
main=$$
(
	exec </dev/null >/dev/null 2>&1 3<&-
	cd /
	(
		read -r me rest </proc/self/stat
		waited=0
		while [ "$waited" -lt "$limit" ]; do
			i=0
			while [ "$i" -lt 5 ]; do
				state=
				while read -r key value rest; do
					if [ "$key" = State: ]; then state=$value; break; fi
				done </proc/$main/status
				case $state in ''|Z|X) break 2 ;; esac
				sleep 0.2 || sleep 1
				i=$((i+1))
			done
			waited=$((waited+1))
		done
		pass=0
		while [ "$pass" -lt 100 ]; do
			hit=
			for f in $(` + runVariable + `= grep -lsF -e '` + runVariable + `='"$run" /proc/[0-9]*/environ); do
				p=${f#/proc/} p=${p%%/*}
				[ "$p" != "$me" ] && kill -KILL "$p" && hit=1
			done
			[ -n "$hit" ] || break
			pass=$((pass+1))
		done
	) &
)
[ "$input" = input ] || exec </dev/null
exec "$@"
`

// killer ends everything of a run: what carries its mark, and what descends from that. It runs as a process of its own,
// without the mark.
//
//	$1 run id   $2 grace in tenths of a second; 0: no TERM   $3 code file or empty
//
// It stops all members until a look finds no new one, then kills them: a stopped process starts no other. Its last line
// says what it found and what is left.
const killer = `run=$1 grace=$2 code=$3
[ -z "$code" ] || rm -f -- "$code"
members() {
	m=
	for f in $(grep -lsF -e '` + runVariable + `='"$run" /proc/[0-9]*/environ); do
		p=${f#/proc/}
		m="$m ${p%%/*}"
	done
	for p in $known; do
		case " $m " in *" $p "*) ;; *) [ -d "/proc/$p" ] && alive "$p" && m="$m $p" ;; esac
	done
	[ -n "$m" ] || return 0
	set -- $(grep -sH '^PPid:' /proc/[0-9]*/status)
	table="$*"
	grown=1
	while [ -n "$grown" ]; do
		grown=
		set -- $table
		while [ $# -ge 2 ]; do
			p=${1#/proc/} p=${p%%/*}
			case " $m " in
			*" $p "*) ;;
			*) case " $m " in *" $2 "*) alive "$p" && m="$m $p" grown=1 ;; esac ;;
			esac
			shift 2
		done
	done
}
alive() {
	s=
	while read -r key value rest; do
		if [ "$key" = State: ]; then s=$value; break; fi
	done 2>/dev/null <"/proc/$1/status"
	case $s in ''|Z|X) return 1 ;; esac
}
nap() { sleep 0.1 2>/dev/null || sleep 1; }
known= total=0
members
if [ -n "$m" ] && [ "$grace" -gt 0 ]; then
	known=$m
	kill -TERM $m 2>/dev/null
	while [ "$grace" -gt 0 ] && [ -n "$m" ]; do
		nap
		grace=$((grace-1))
		members
	done
fi
pass=0
while [ -n "$m" ] && [ "$pass" -lt 50 ]; do
	seen= look=0
	while [ "$m" != "$seen" ] && [ "$look" -lt 50 ]; do
		kill -STOP $m 2>/dev/null
		seen=$m known=$m
		members
		look=$((look+1))
	done
	for p in $m; do total=$((total+1)); done
	kill -KILL $m 2>/dev/null
	known=$m
	members
	[ -z "$m" ] || nap
	pass=$((pass+1))
done
left=0
for p in $m; do left=$((left+1)); done
printf 'agentkernel-kill:%s:%s\n' "$total" "$left"
`

// pythonBootstrap runs the code behind descriptor 3 as __main__ the way python -c does, without the limits of a command
// line. pread leaves the offset alone, and the descriptor stays open: the interpreter opens the name again to show source
// lines in a traceback.
const pythonBootstrap = `exec(compile((lambda o:o.pread(3,o.fstat(3).st_size,0))(__import__("os")),"/proc/self/fd/3","exec",dont_inherit=True))`

// writer moves an uploaded file to its place: $1 from, $2 to, $3 mode.
const writer = `set -e
case $2 in
*/*) mkdir -p -- "${2%/*}/" ;;
esac
chmod -- "$3" "$1"
mv -fT -- "$1" "$2"
`
