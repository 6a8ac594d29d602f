#!/bin/sh
# Stands in for bpf-linker: with fat LTO and one codegen unit rustc hands over exactly one bitcode module, so code
# generation is all that is left of linking. `cargo xtask bpf` sets LLC to an llc at least as new as rustc's LLVM.
set -eu
out=""
in=""
while [ $# -gt 0 ]; do
    case "$1" in
        -o) out="$2"; shift ;;
        --output=*) out="${1#--output=}" ;;
        *.o | *.bc) in="$in $1" ;;
        *.rlib) ;; # fat LTO has taken all of it
    esac
    shift
done
set -- $in
[ $# -eq 1 ] || { echo "linker.sh: expected one bitcode module, got $#:$in" >&2; exit 1; }
exec "$LLC" -march=bpfel -mcpu=v3 -O3 -filetype=obj -o "$out" "$1"
