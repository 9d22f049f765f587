package image

// toolDirs are the top-level directories that hold the machine's programs. Each
// that is a symlink here is the same symlink inside; each that is a directory
// is mounted.
func toolDirs() []string {
	return []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}
}

// maskedDirs are below toolDirs and hold this machine's own settings, in which
// registry tokens and the like are found.
func maskedDirs() []string {
	return []string{"usr/local/etc", "usr/etc", "usr/local/var", "usr/home", "usr/local/home"}
}

// etcAllowed are the names directly below /etc of which a copy is shown, as
// patterns of path.Match. Other names are not shown.
func etcAllowed() []string {
	return []string{
		// The dynamic linker and the ways by which commands find one another.
		"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld-musl-*.path", "alternatives",
		// What this is, and its language, time and terminals.
		"os-release", "debian_version", "redhat-release", "fedora-release", "alpine-release", "lsb-release",
		"localtime", "timezone", "locale.alias", "locale.conf", "terminfo", "inputrc",
		// Tables that programs look things up in.
		"services", "protocols", "rpc", "ethertypes", "mime.types", "magic", "magic.mime", "gai.conf", "host.conf",
		// Certificates of authorities; ssl and pki are cut down further in etcParts.
		"ca-certificates", "ca-certificates.conf", "crypto-policies",
		// Languages and libraries that keep part of themselves here.
		"python3", "python3.*", "perl", "java", "java-*-openjdk*", "fonts", "xml", "sgml", "glvnd", "OpenCL",
		"ImageMagick-*", "php", "R", "octave", "texmf", "groff", "manpath.config", "debuginfod", "gprofng.rc",
	}
}

// etcParts are copied from directories of /etc that are otherwise not shown.
func etcParts() []string {
	return []string{
		"ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "ssl/ct_log_list.cnf",
		"pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted", "pki/java",
	}
}

// extraPath are directories below toolDirs that a toolchain is usually put in
// without being linked from a directory of the standard PATH.
func extraPath() []string {
	return []string{"usr/local/go/bin", "usr/lib/go/bin", "usr/local/cargo/bin", "usr/local/cuda/bin"}
}

// namesDir holds further names of programs of the machine's.
const namesDir = "opt/cloche/bin"

// overDir holds programs of Cloche's own that programs find before those of the machine.
const overDir = "opt/cloche/sbin"

// sudoProgram is the agent, which is sudo by that name.
const sudoProgram = "/.cloche" + AgentPath

// emptyDirs are there for programs that expect them and for mounts.
func emptyDirs() map[string]uint16 {
	return map[string]uint16{
		"dev": 0o755, "dev/shm": 0o1777, "dev/pts": 0o755, "proc": 0o555, "sys": 0o555,
		"tmp": 0o1777, "run": 0o755, "run/lock": 0o1777, "run/user": 0o755,
		"etc": 0o755, "etc/skel": 0o755, "root": 0o700, "home": 0o755, "opt": 0o755, "srv": 0o755, "mnt": 0o755, "media": 0o755,
		"var": 0o755, "var/tmp": 0o1777, "var/cache": 0o755, "var/lib": 0o755, "var/log": 0o755, "var/spool": 0o755,
		".cloche": 0o755,
	}
}

// The user of the sandbox besides root.
const (
	userName = "user"
	userID   = 1000
)

// etcMade are files of /etc that are written for the sandbox and never copied.
func etcMade(shell string) map[string]string {
	return map[string]string{
		"passwd": "root:x:0:0:root:/root:" + shell + "\n" +
			"daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n" +
			"bin:x:2:2:bin:/bin:/usr/sbin/nologin\n" +
			userName + ":x:1000:1000::/home/" + userName + ":" + shell + "\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group": "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\nadm:x:4:\ntty:x:5:\ndisk:x:6:\nmail:x:8:\n" +
			"utmp:x:43:\nstaff:x:50:\nusers:x:100:\n" + userName + ":x:1000:\nnogroup:x:65534:\n",
		"hosts":         "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"hostname":      "sandbox\n",
		"resolv.conf":   "# This sandbox has no network.\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n",
		"networks":      "loopback\t127.0.0.0\n",
		"shells":        "/bin/sh\n" + shell + "\n",
		"fstab":         "",
		"adduser.conf":  "",
		// What root changes about users needs no password. Others are asked for none that
		// could be right.
		"pam.d/other": "auth sufficient pam_rootok.so\nauth required pam_deny.so\naccount required pam_permit.so\n" +
			"password required pam_unix.so\nsession required pam_permit.so\n",
		"profile": "# Settings of login shells go to ~/.profile.\nif [ -n \"$BASH\" ]; then PS1='\\u@\\h:\\w\\$ '; else PS1='$ '; fi\numask 022\n",
	}
}
