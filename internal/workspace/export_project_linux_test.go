package workspace

import "os"

// ProjectOf is the project of the directory at path.
func ProjectOf(path string) (uint32, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return projectOf(f)
}

// SetProjectOf makes the directory at path one of a project.
func SetProjectOf(path string, id uint32) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return setProject(f, id)
}

// ProjectIsFree says whether a project is unused, on the filesystem of path.
func ProjectIsFree(path string, id uint32) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	q, err := projectQuota(f, id)
	return q.isFree(), err
}

// PrivateDisk is PrivateBounded for a disk, whatever the filesystem holds.
func PrivateDisk(path, staging string, b Bounds) (*Dir, error) { return privateDisk(path, staging, b) }
