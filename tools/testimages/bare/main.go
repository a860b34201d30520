// The only program of the test image without shell, Python, sleep and ps. It does what its name says.
//
//	hello   prints one line to each stream
//	exit N  ends with status N
//	cat     copies stdin to stdout
//	env     prints the environment
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "hello":
		_, _ = fmt.Fprintln(os.Stdout, "hello from bare") // nobody to tell
		fmt.Fprintln(os.Stderr, "and from its stderr")
	case "exit":
		if len(os.Args) == 2 {
			if status, err := strconv.ParseUint(os.Args[1], 10, 8); err == nil {
				os.Exit(int(status))
			}
		}
		fmt.Fprintln(os.Stderr, "usage: exit N (0 to 255)")
		os.Exit(125)
	case "cat":
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "env":
		for _, entry := range os.Environ() {
			fmt.Println(entry)
		}
	}
}
