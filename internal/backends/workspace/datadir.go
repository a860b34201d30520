package workspace

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// DataDirSetting is the provider setting that both backends have.
func DataDirSetting(kind sandboxcore.BackendType) sandboxcore.Setting {
	return sandboxcore.Setting{
		Name: "data_dir", Kind: sandboxcore.KindString,
		Description: "Absolute path of the directory that holds the sandboxes, each in `<data_dir>/" + string(kind) + "/<id>`. " +
			"Default `$XDG_STATE_HOME/agentkernel`, without that variable `~/.local/state/agentkernel`, and " +
			"`/var/lib/agentkernel` for root, whose home directory other users may not enter. The directory is part of " +
			"the endpoint: with another one the sandboxes of this one are not found, which is an error and not a deletion.",
		Pattern: `^/|^[A-Za-z]:[\\/]`, PatternHint: "an absolute path",
	}
}

// dataDirAttribute is where the setting stands in the provider block.
func dataDirAttribute(kind sandboxcore.BackendType) []string {
	return []string{string(kind), "data_dir"}
}

// systemDataDir is the default of root. It is not root's home: a sandbox that runs under a user of its own has to be
// able to enter the directories above its workspace, and /root is closed on most systems.
const systemDataDir = "/var/lib/agentkernel"

// DataDir is the data directory that the provider setting of a backend kind (empty: none) and the environment give. It
// looks at no file.
func DataDir(kind sandboxcore.BackendType, setting string, getenv func(string) string) (string, error) {
	bad := func(said string) (string, error) {
		return "", &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "could not tell the data directory of sandboxes", Object: string(kind), Said: said,
			Next:      fmt.Sprintf("Set %s = { data_dir = … } to an absolute path in the provider block.", kind),
			Attribute: dataDirAttribute(kind),
		}
	}
	if setting != "" {
		if !filepath.IsAbs(setting) || strings.ContainsRune(setting, 0) {
			return bad("data_dir is not an absolute path.")
		}
		return filepath.Clean(setting), nil
	}
	// The XDG specification says that a relative value is to be ignored.
	if state := getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "agentkernel"), nil
	}
	if os.Geteuid() == 0 {
		return systemDataDir, nil
	}
	home := getenv("HOME")
	if runtime.GOOS == "windows" && home == "" {
		home = getenv("USERPROFILE")
	}
	if !filepath.IsAbs(home) {
		return bad("neither XDG_STATE_HOME nor HOME is set to an absolute path.")
	}
	return filepath.Join(home, ".local", "state", "agentkernel"), nil
}

// machineIDFiles hold an id of the installation on systemd and D-Bus systems.
var machineIDFiles = []string{"/etc/machine-id", "/var/lib/dbus/machine-id"}

// Identity is the identity of the endpoint that the store is on: which machine, which user, which data directory. The
// parts are hashed (the machine id is not meant to be published), and apart, so that one sees which of them differs.
func (s *Store) Identity() (string, error) {
	machine, err := s.machine()
	if err != nil {
		return "", err
	}
	return "machine-" + hashed("machine", machine) + "/uid-" + strconv.Itoa(os.Geteuid()) + "/dir-" + hashed("data_dir", s.dataDir)[:8], nil
}

func hashed(what, text string) string {
	sum := sha256.Sum256([]byte("agentkernel " + what + "\x00" + text))
	return hex.EncodeToString(sum[:8])
}

// machine tells this machine from others. Where the system has no id, one is made and kept in the data directory; the
// host name is added to it, so that a data directory that two such machines share is not one endpoint.
func (s *Store) machine() (string, error) {
	for _, file := range machineIDFiles {
		text, err := os.ReadFile(file)
		if id := strings.TrimSpace(string(text)); err == nil && len(id) >= 32 {
			return id, nil
		}
	}
	id, err := s.generatedMachineID()
	if err != nil {
		return "", s.unusable("could not tell this machine from others", err)
	}
	if runtime.GOOS != "linux" {
		return id, nil // host names of laptops follow the network they are in
	}
	host, err := os.Hostname()
	if err != nil {
		return "", s.unusable("could not tell this machine from others", err)
	}
	return id + "\x00" + host, nil
}

func (s *Store) generatedMachineID() (string, error) {
	if err := s.prepare(); err != nil {
		return "", err
	}
	file := filepath.Join(s.dir, ".machine-id")
	for {
		text, err := os.ReadFile(file)
		if id := strings.TrimSpace(string(text)); err == nil && len(id) >= 32 {
			return id, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		raw := make([]byte, 16)
		if _, err := rand.Read(raw); err != nil {
			return "", err
		}
		// Linked into place and not renamed: of two processes that make one at the same time only the first wins.
		temp, err := os.CreateTemp(s.dir, ".machine-id-")
		if err != nil {
			return "", err
		}
		_, err = temp.WriteString(hex.EncodeToString(raw) + "\n")
		err = errors.Join(err, temp.Sync(), temp.Close())
		if err == nil {
			err = os.Link(temp.Name(), file)
		}
		err = errors.Join(ignoreExist(err), os.Remove(temp.Name()))
		if err != nil {
			return "", err
		}
	}
}

func ignoreExist(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
