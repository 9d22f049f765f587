"""What is run inside to find out where a path leads, and to do one thing there."""

from __future__ import annotations

SCRIPT = r"""
op=$1 path=$2 most=$3 token=$4
shift 4

# real PATH sets $real to where it leads, with what is not there yet as it was asked for.
real() {
    p=$1 rest= links=0
    while :; do
        if [ -L "$p" ]; then
            links=$((links + 1))
            [ "$links" -le 40 ] || exit 112
            to=$(readlink -- "$p" && printf x) || exit 68
            to=${to%?x}
            case $to in
                /*) p=$to ;;
                *) p=${p%/*}/$to ;;
            esac
        elif [ -d "$p" ]; then
            real=$(cd -P -- "$p" 2>/dev/null && pwd -P && printf x)
            real=${real%?x}
            # Who may not enter it gets no further than its name.
            [ -n "$real" ] || real=$p
            break
        else
            case $p in
                */) p=${p%/} ;;
                *) rest=/${p##*/}$rest p=${p%/*} ;;
            esac
            [ -n "$p" ] || p=/
        fi
    done
    real=${real%/}$rest
    [ -n "$real" ] || real=/
    case $real/ in
        */../*) printf '%s\n' "$real" >&2; exit 111 ;;
    esac
}

case $op in
    remove|remove-all)
        # A link itself is removed, and not where it leads.
        real "${path%/*}/"
        target=${real%/}/${path##*/} ;;
    *)
        real "$path"
        target=$real ;;
esac

# The longest of the directories that may be used decides.
allowed= fixed=0
while [ $# -gt 1 ]; do
    real "$1"
    [ "$real" != / ] || { printf '%s\n' "$1" >&2; exit 113; }
    case $target/ in
        "$real"/*)
            if [ "${#real}" -gt "${#allowed}" ]; then allowed=$real fixed=$2; fi ;;
    esac
    shift 2
done
[ -n "$allowed" ] || { printf '%s\n' "$target" >&2; exit 111; }
case $op in
    read|check|list) ;;
    *) [ "$fixed" = 0 ] || { printf '%s\n' "$target" >&2; exit 114; } ;;
esac

# parents makes the directories above the target, and refuses what this user may not write.
parents() {
    [ ! -d "$target" ] || exit 67
    dir=${target%/*}
    [ -n "$dir" ] || dir=/
    [ -d "$dir" ] || mkdir -p -- "$dir" || exit 68
    if [ -e "$target" ]; then
        [ -w "$target" ] || exit 68
    else
        { [ -w "$dir" ] && [ -x "$dir" ]; } || exit 68
    fi
}

case $op in
    check|check-write) ;;
    read)
        if [ ! -e "$target" ]; then
            dir=${target%/*}
            while [ -n "$dir" ] && [ ! -d "$dir" ]; do dir=${dir%/*}; done
            [ -x "${dir:-/}" ] || exit 68
            exit 66
        fi
        [ ! -d "$target" ] || exit 67
        [ -f "$target" ] || exit 1
        [ -r "$target" ] || exit 68
        exec head -c "$most" -- "$target" ;;
    list)
        [ -e "$target" ] || exit 66
        [ -d "$target" ] || exit 1
        { [ -r "$target" ] && [ -x "$target" ]; } || exit 68
        cat /etc/passwd 2>/dev/null
        printf '\0'
        cat /etc/group 2>/dev/null
        exit 0 ;;
    prepare) parents ;;
    write)
        parents
        if [ ! -w "$dir" ] || [ -e "$target" ] && [ ! -f "$target" ]; then
            cat > "$target"
            exit
        fi
        new=$dir/.cloche-$token
        # Its mode, and its owner where this user may give it away.
        if [ ! -f "$target" ] || cp -p -- "$target" "$new"; then
            cat > "$new" && mv -f -- "$new" "$target" && exit 0
        fi
        rm -f -- "$new"
        exit 1 ;;
    mkdir) mkdir -- "$target" ;;
    mkdir-parents) mkdir -p -- "$target" ;;
    remove) rm -- "$target" ;;
    remove-all) rm -rf -- "$target" ;;
    *) exit 64 ;;
esac
"""
"""A script for any sh. Its arguments are what to do, the path, how much is read, a token for a name, then each
directory that may be used with 1 where it is read-only."""
