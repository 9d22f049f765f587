//go:build linux && !remoteonly

package network

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/cloche-dev/cloche/internal/egress"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// saveEvery is how often what was used is written down while flows end. A daemon that
// is killed forgets what ended in that time, and what had not ended.
const saveEvery = time.Second

// readUsed is what the sandbox had used when that was last written. A file that cannot
// be read has nothing.
func readUsed(dir string) egress.Usage {
	var u egress.Usage
	b, err := os.ReadFile(filepath.Join(dir, usedFile))
	if err != nil || json.Unmarshal(b, &u) != nil {
		return egress.Usage{}
	}
	return u
}

// saveUsedSometimes is saveUsed for each flow that ends.
func (w *Network) saveUsedSometimes() {
	w.mu.Lock()
	due := time.Since(w.saved) >= saveEvery
	w.mu.Unlock()
	if due {
		w.saveUsed()
	}
}

// saveUsed writes down what was used, if that has changed.
func (w *Network) saveUsed() {
	now := w.gate.Usage()
	w.mu.Lock()
	defer w.mu.Unlock()
	if now == w.used {
		return
	}
	w.saved = time.Now()
	if err := writeUsed(w.place.Dir, now); err != nil {
		w.networks.log.Warn("write what was used of the network", "sandbox", w.place.ID, "error", err)
		return
	}
	w.used = now
}

func writeUsed(dir string, u egress.Usage) error {
	b, err := json.Marshal(u)
	if err != nil {
		return err
	}
	return hostfile.ReplaceIn(dir, usedFile, b)
}
