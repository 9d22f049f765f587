#!/bin/sh
# debian.sh FILE: the root of an image of Debian's own packages with Python, as a tar. A mirror is
# asked for the packages.
exec mmdebstrap --quiet --variant=minbase --include=python3-venv --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$1"
