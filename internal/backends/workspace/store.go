package workspace

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const (
	markerFile   = "marker.json"
	envFile      = "env.json"
	closingFile  = "closing"
	runsDir      = "runs"
	workspaceDir = "workspace"
	newPrefix    = ".new-"
	gonePrefix   = ".gone-"

	// markerVersion is the version of marker.json that this code writes, and the newest that it reads.
	markerVersion = 1
	// markerLimit is far above any real marker; what is larger is not read.
	markerLimit = 16 << 20
)

// idPattern is what a native id looks like. Anything else is refused before it can become a part of a path.
var idPattern = regexp.MustCompile(`^[0-9a-f]{24}$`)

// ValidID reports whether id could be the native id of a sandbox.
func ValidID(id string) bool { return idPattern.MatchString(id) }

func newID() (string, error) {
	raw := make([]byte, 12)
	if _, err := rand.Read(raw); err != nil {
		return "", err
	}
	return hex.EncodeToString(raw), nil
}

// NoUID is the user of a sandbox that runs as the user of the provider.
const NoUID = -1

// Store is the directory of all sandboxes that one backend kind keeps for one user. It is safe for concurrent use, by
// several processes too.
type Store struct {
	kind    sandboxcore.BackendType
	dataDir string
	dir     string
	ownUIDs bool
}

// New makes a store below dataDir. With ownUIDs every sandbox belongs to a user of its own (Options.UID), so other
// users may pass through the directories above it, without being able to list them. It touches nothing.
func New(kind sandboxcore.BackendType, dataDir string, ownUIDs bool) *Store {
	return &Store{kind: kind, dataDir: dataDir, dir: filepath.Join(dataDir, string(kind)), ownUIDs: ownUIDs}
}

// Dir is the directory of the sandboxes.
func (s *Store) Dir() string { return s.dir }

// DataDir is the data directory that the store is in.
func (s *Store) DataDir() string { return s.dataDir }

func (s *Store) unusable(attempted string, err error) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeUnreachable, Attempted: attempted, Object: s.dir, Err: err,
		Next:      "Make the data directory usable for the user that runs the provider, or set data_dir to another one.",
		Attribute: dataDirAttribute(s.kind),
	}
}

// passableMode lets other users pass through a directory without being able to list it.
const passableMode fs.FileMode = 0o711

func (s *Store) dirMode() fs.FileMode {
	if s.ownUIDs {
		return passableMode
	}
	return 0o700
}

// prepare makes the directory of the store and checks that nobody else can put anything into it.
func (s *Store) prepare() error {
	// The data directory is shared by the stores of several kinds, and root's sandboxes of one kind run under users of
	// their own: what root makes above a store is passable, whichever kind comes first. The umask may have taken bits
	// away from what was made here, and only from that.
	var made []string
	for dir := s.dir; ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			break
		}
		made = append(made, dir)
	}
	above := s.dirMode()
	if os.Geteuid() == 0 {
		above = passableMode
	}
	if err := os.MkdirAll(s.dataDir, above); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, s.dirMode()); err != nil {
		return err
	}
	for _, dir := range made {
		mode := above
		if dir == s.dir {
			mode = s.dirMode()
		}
		if err := os.Chmod(dir, mode); err != nil {
			return err
		}
	}
	return s.check()
}

// check refuses a store into which somebody else could put a directory with a marker.
func (s *Store) check() error {
	info, err := os.Lstat(s.dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", s.dir)
	}
	return checkOwner(s.dir, info)
}

// marker is the content of marker.json.
type marker struct {
	Version int                     `json:"version"`
	Backend sandboxcore.BackendType `json:"backend"`
	ID      string                  `json:"id"`
	UID     *int                    `json:"uid,omitempty"`
	Config  json.RawMessage         `json:"config,omitempty"`
	Marks   map[string]string       `json:"marks"`
}

// Sandbox is one directory with a valid marker, as it was when it was looked at.
type Sandbox struct {
	ID    string
	Marks sandboxcore.Marks
	// UID is the user and the group that the sandbox belongs to, or NoUID.
	UID int
	// Config is what the backend keeps with the sandbox, as JSON. It holds no secret.
	Config json.RawMessage

	store *Store
}

// Dir is the directory of the sandbox, which its code cannot see.
func (b *Sandbox) Dir() string { return filepath.Join(b.store.dir, b.ID) }

// Workspace is the directory of the sandbox's own files.
func (b *Sandbox) Workspace() string { return filepath.Join(b.Dir(), workspaceDir) }

// Object names the sandbox in errors.
func (b *Sandbox) Object() string { return string(b.store.kind) + "/" + b.ID }

// Env is the environment that every run in the sandbox gets.
func (b *Sandbox) Env() (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join(b.Dir(), envFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, b.gone()
	}
	var env map[string]string
	if err == nil {
		err = json.Unmarshal(text, &env)
	}
	if err != nil {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: "could not read the environment of the sandbox", Object: b.Object(),
			Said: err.Error() + ".", Next: "Destroy the sandbox and create it again.",
		}
	}
	return env, nil
}

// Options say what Create makes.
type Options struct {
	Marks sandboxcore.Marks
	Env   map[string]string
	// UID gives the user of the sandbox; it is called while no other sandbox can be made, with the users that the
	// others have. Nil: the sandbox runs as the user of the provider.
	UID func(taken []int) (int, error)
	// Config is kept with the sandbox, see Sandbox.Config. It holds no secret.
	Config json.RawMessage
}

// Create makes a sandbox. It appears at once and whole: the marker is on disk before the directory has its name.
func (s *Store) Create(ctx context.Context, opts Options) (*Sandbox, error) {
	failed := func(err error) error {
		if _, known := errors.AsType[*sandboxcore.Error](err); known {
			return err
		}
		return &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: "could not create the sandbox", Object: s.dir, Err: err,
			Next:      "Nothing was left behind. Make the data directory usable, or set data_dir to another one.",
			Attribute: dataDirAttribute(s.kind),
		}
	}
	if err := s.prepare(); err != nil {
		return nil, failed(err)
	}
	id, err := newID()
	if err != nil {
		return nil, failed(err)
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, failed(err)
	}
	defer unlock()
	s.sweep()
	box, err := s.create(id, opts)
	if err != nil {
		if rest := removeTree(s.dir, newPrefix+id); rest != nil {
			err = errors.Join(err, rest)
		}
		return nil, failed(err)
	}
	return box, nil
}

func (s *Store) create(id string, opts Options) (*Sandbox, error) {
	kv, err := opts.Marks.Encode()
	if err != nil {
		return nil, err
	}
	m := marker{Version: markerVersion, Backend: s.kind, ID: id, Marks: kv, Config: opts.Config}
	box := &Sandbox{ID: id, Marks: opts.Marks, UID: NoUID, Config: opts.Config, store: s}
	if opts.UID != nil {
		all, err := s.List()
		if err != nil {
			return nil, err
		}
		var taken []int
		for _, other := range all {
			taken = append(taken, other.UID)
		}
		if box.UID, err = opts.UID(taken); err != nil {
			return nil, err
		}
		m.UID = &box.UID
	}
	temp := filepath.Join(s.dir, newPrefix+id)
	if err := os.Mkdir(temp, 0o700); err != nil {
		return nil, err
	}
	if err := writeJSON(filepath.Join(temp, markerFile), m); err != nil {
		return nil, err
	}
	env := opts.Env
	if env == nil {
		env = map[string]string{}
	}
	if err := writeJSON(filepath.Join(temp, envFile), env); err != nil {
		return nil, err
	}
	for _, dir := range []string{runsDir, workspaceDir} {
		if err := os.Mkdir(filepath.Join(temp, dir), 0o700); err != nil {
			return nil, err
		}
	}
	if box.UID != NoUID {
		// The sandbox's group, and nobody else, may pass through to the workspace; it may not list what is beside it.
		err := errors.Join(
			os.Chown(filepath.Join(temp, workspaceDir), box.UID, box.UID),
			os.Chown(temp, -1, box.UID),
			os.Chmod(temp, 0o710)) //nolint:gosec // entering is all that the group may do
		if err != nil {
			return nil, err
		}
	}
	if err := syncDir(temp); err != nil {
		return nil, err
	}
	if err := os.Rename(temp, box.Dir()); err != nil {
		return nil, err
	}
	// From here on the object exists; that its name may not survive a power cut is no reason to call it failed.
	_ = syncDir(s.dir)
	return box, nil
}

// sweep removes what an interrupted Create or Destroy left. It is called under the lock, so none of it is in use.
func (s *Store) sweep() {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		id, ok := strings.CutPrefix(e.Name(), newPrefix)
		if !ok {
			id, ok = strings.CutPrefix(e.Name(), gonePrefix)
		}
		if ok && ValidID(id) {
			_ = removeTree(s.dir, e.Name()) // tried again by the next Create
		}
	}
}

// Find looks at one sandbox. Errors: CodeGone, CodeNotOurs, CodeValue for what is no id.
func (s *Store) Find(id string) (*Sandbox, error) {
	if !ValidID(id) {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the sandbox id was refused", Object: string(s.kind) + "/" + id,
			Said: "it is not the id of a " + string(s.kind) + " sandbox, which is 24 lower-case hexadecimal digits.",
			Next: "Use the id of an agentkernel_sandbox.", Attribute: []string{"id"},
		}
	}
	box := &Sandbox{ID: id, store: s}
	err := s.check()
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Lstat(box.Dir()); err == nil && !info.IsDir() {
			return nil, box.notOurs("there is a file that is no directory in its place.")
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, box.gone()
	case err != nil:
		return nil, s.unusable("could not look for the sandbox", err)
	}
	text, err := readBounded(filepath.Join(box.Dir(), markerFile))
	if errors.Is(err, fs.ErrNotExist) {
		// A Destroy that ends right now removes the marker first.
		if _, again := os.Lstat(box.Dir()); errors.Is(again, fs.ErrNotExist) {
			return nil, box.gone()
		}
		return nil, box.notOurs("the directory has no " + markerFile + ".")
	}
	if err != nil {
		return nil, box.notOurs("its " + markerFile + " cannot be read: " + err.Error() + ".")
	}
	var m marker
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, box.notOurs("its " + markerFile + " cannot be read: " + err.Error() + ".")
	}
	switch {
	case m.Version > markerVersion:
		return nil, box.notOurs(fmt.Sprintf("its %s has version %d, and this release reads up to %d: a newer release made it.",
			markerFile, m.Version, markerVersion))
	case m.Version < 1 || m.ID != id || m.Backend != s.kind:
		return nil, box.notOurs("its " + markerFile + " is that of another sandbox.")
	}
	if box.Marks, err = sandboxcore.DecodeMarks(box.Object(), m.Marks); err != nil {
		return nil, err
	}
	box.UID, box.Config = NoUID, m.Config
	if m.UID != nil {
		box.UID = *m.UID
	}
	return box, nil
}

// List gives every sandbox of the store. What has no valid marker is not ours and is not in it.
func (s *Store) List() ([]*Sandbox, error) {
	err := s.check()
	var entries []fs.DirEntry
	if err == nil {
		entries, err = os.ReadDir(s.dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, s.unusable("could not list the sandboxes", err)
	}
	var boxes []*Sandbox
	for _, e := range entries {
		if !ValidID(e.Name()) {
			continue
		}
		box, err := s.Find(e.Name())
		switch sandboxcore.CodeOf(err) {
		case "":
			boxes = append(boxes, box)
		case sandboxcore.CodeGone, sandboxcore.CodeNotOurs:
		default:
			return nil, err
		}
	}
	return boxes, nil
}

// UpdateMarks gives the sandbox other marks. Whose it is and what it may do stays.
func (b *Sandbox) UpdateMarks(marks sandboxcore.Marks) error {
	now, err := b.store.Find(b.ID)
	if err != nil {
		return err
	}
	kv, err := marks.Encode()
	if err == nil {
		m := marker{Version: markerVersion, Backend: b.store.kind, ID: b.ID, Config: now.Config, Marks: kv}
		if now.UID != NoUID {
			m.UID = &now.UID
		}
		file := filepath.Join(b.Dir(), markerFile)
		_ = os.Remove(file + ".tmp") // of an update that was interrupted
		err = writeJSON(file, m)
	}
	if err != nil {
		return &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: "could not record the change of the sandbox", Object: b.Object(), Err: err,
			Next: "Nothing was changed. Make the data directory writable and apply again.",
		}
	}
	return nil
}

func (b *Sandbox) gone() error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeGone, Attempted: "the sandbox was not found", Object: b.Object(),
		Said: "there is no directory " + b.Dir() + ".", Next: "Apply again to create it.",
	}
}

func (b *Sandbox) notOurs(said string) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeNotOurs, Attempted: "the directory was refused", Object: b.Dir(), Said: said,
		Next: "Only sandboxes that this provider created are used or removed; it never touches other directories.",
	}
}

// writeJSON writes a file of mode 0600 that is on disk when it returns, in one step.
func writeJSON(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	temp, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = temp.Write(append(text, '\n'))
	if err = errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, markerLimit+1))
	if err == nil && len(text) > markerLimit {
		err = fmt.Errorf("it is larger than %d bytes", markerLimit)
	}
	return text, err
}
