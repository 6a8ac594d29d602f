#!/bin/sh
# Tests sluice-tune over a root that is made here: a host of four CPUs with irqbalance and one NIC (eth1). Needs no root
# and touches nothing of the host.

set -eu

tune=$(cd "$(dirname "$0")" && pwd)/sluice-tune
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
net=$root/sys/class/net/eth1
cpus=$root/sys/devices/system/cpu
thp=$root/sys/kernel/mm/transparent_hugepage

put() { mkdir -p "$(dirname "$1")" && printf '%s\n' "$2" >"$1"; }

put "$cpus/online" 0-3
for cpu in 0 1 2 3; do
    put "$cpus/cpu$cpu/cpufreq/scaling_governor" powersave
    put "$cpus/cpu$cpu/cpuidle/state1/latency" 2
    put "$cpus/cpu$cpu/cpuidle/state1/disable" 0
    put "$cpus/cpu$cpu/cpuidle/state2/latency" 133
    put "$cpus/cpu$cpu/cpuidle/state2/disable" 0
done
put "$thp/enabled" '[always]'
put "$thp/shmem_enabled" 'always within_size advise [never] deny force'
put "$root/proc/77/comm" irqbalance
put "$root/proc/net/route" "Iface	Destination	Gateway	Flags	RefCnt	Use	Metric	Mask
eth0	00000000	0100A8C0	0003	0	0	0	00000000	0	0	0
eth1	0000A8C0	00000000	0001	0	0	0	00FFFFFF	0	0	0"
put "$net/device/local_cpulist" 0-3
mkdir -p "$root/sys/class/net/eth0"
for irq in 40 41 42; do
    put "$net/device/msi_irqs/$irq" msix
    put "$root/proc/irq/$irq/smp_affinity_list" 0-3
done

# A driver with a ring of 512 at most, rxvlan fixed, and everything else settable; one file a setting.
nic=$work/nic
put "$nic/ring" 256
put "$nic/usecs" 50
put "$nic/adaptive" on
for feature in rx-vlan-filter lro gro; do put "$nic/$feature" on; done
cat >"$work/ethtool" <<END
#!/bin/sh
is() { cat "$nic/\$1"; }
case \$1 in
    -g) printf 'Ring parameters for %s:\nPre-set maximums:\nRX:\t\t512\nCurrent hardware settings:\nRX:\t\t%s\nTX:\t\t64\n' "\$2" "\$(is ring)" ;;
    -c) printf 'Adaptive RX: %s  TX: off\nrx-usecs:\t%s\nrx-usecs-irq:\t0\n' "\$(is adaptive)" "\$(is usecs)" ;;
    -k) printf 'rx-vlan-offload: on [fixed]\nrx-vlan-filter: %s\nlarge-receive-offload: %s\ngeneric-receive-offload: %s\n' \
        "\$(is rx-vlan-filter)" "\$(is lro)" "\$(is gro)" ;;
    -G) [ "\$4" -le 512 ] && echo "\$4" >"$nic/ring" ;;
    -C) echo "\$4" >"$nic/\${3#rx-}" && { [ "\$3" != adaptive-rx ] || { rm "$nic/adaptive-rx" && echo "\$4" >"$nic/adaptive"; }; } ;;
    -K) echo "\$4" >"$nic/\$3" ;;
esac
END
cat >"$work/systemctl" <<END
#!/bin/sh
echo "\$*" >>"$work/systemctl.log"
END
chmod +x "$work/ethtool" "$work/systemctl"

tests=0
run() {
    set +e
    SLUICE_TUNE_ROOT=$root SLUICE_TUNE_ETHTOOL=$work/ethtool SLUICE_TUNE_SYSTEMCTL=$work/systemctl sh "$tune" "$@" >"$work/out" 2>&1
    code=$?
    set -e
}
expect_code() {
    tests=$((tests + 1))
    [ "$code" -eq "$1" ] || { echo "FAILED $2: exit code $code, not $1" && cat "$work/out" && exit 1; }
}
expect_line() {
    tests=$((tests + 1))
    grep -qF -- "$1" "$work/out" || { echo "FAILED: no line with: $1" && cat "$work/out" && exit 1; }
}
expect() {
    tests=$((tests + 1))
    [ "$(cat "$1")" = "$2" ] || { echo "FAILED: $1 is $(cat "$1"), not $2" && cat "$work/out" && exit 1; }
}
# Everything that a run could change.
picture() { (cd "$work" && find root nic -type f ! -path '*/sluice-tune/*' | sort | xargs grep -H ''); }

picture >"$work/before"

run show --interface eth1 --cores 2-3 --rx-ring 512 --rx-usecs 8
expect_code 1 "show finds differences"
expect_line 'would set /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor: powersave -> performance'
expect_line 'would set irqbalance banned CPUs: none -> 2-3'
expect_line 'would set /proc/irq/41/smp_affinity_list: 0-3 -> 1'
expect_line 'fixed     eth1 rxvlan: on'
picture | diff "$work/before" - || { echo "FAILED: show changed something" && exit 1; }
[ ! -e "$root/run" ] || { echo "FAILED: show left a state" && exit 1; }

run apply --interface eth1 --cores 2-3 --rx-ring 512 --rx-usecs 8
expect_code 0 "apply"
expect "$cpus/cpu3/cpufreq/scaling_governor" performance
expect "$cpus/cpu2/cpuidle/state2/disable" 1
expect "$cpus/cpu2/cpuidle/state1/disable" 0
expect "$cpus/cpu1/cpuidle/state2/disable" 0
expect "$root/proc/irq/40/smp_affinity_list" 0
expect "$root/proc/irq/41/smp_affinity_list" 1
expect "$root/proc/irq/42/smp_affinity_list" 0
expect "$nic/ring" 512
expect "$nic/adaptive" off
expect "$nic/usecs" 8
expect "$nic/gro" off
expect "$nic/rx-vlan-filter" off
grep -q 'BANNED_CPULIST=2-3$' "$root/run/systemd/system/irqbalance.service.d/90-sluice-tune.conf"
grep -q '^try-restart irqbalance.service$' "$work/systemctl.log"
expect "$thp/enabled" madvise
expect "$thp/shmem_enabled" advise

run apply --interface eth1 --cores 2-3 --rx-ring 512 --rx-usecs 8
expect_code 0 "a second apply"
if grep -q '^set' "$work/out"; then echo "FAILED: a second apply set something" && exit 1; fi
run apply --interface eth1 --cores 3 --irq-cpus 2
expect_code 0 "an apply of something else on top"
expect "$root/proc/irq/40/smp_affinity_list" 2
run apply --interface eth1 --cores 3 --rx-ring 4096
expect_code 3 "a ring that the driver refuses"
expect_line 'refused   eth1 rx ring: 512 -> 4096, is 512'

run show --interface eth1 --cores 3
expect_code 0 "show finds nothing to do"

echo 17 >"$nic/usecs"
run undo
expect_code 0 "undo"
expect_line 'left      eth1 rx-usecs: is 17, and not the 8 that was set'
echo 50 >"$nic/usecs"
# Choices come back without their brackets: the fake files do not mark them as the kernel does.
echo '[always]' >"$thp/enabled"
echo 'always within_size advise [never] deny force' >"$thp/shmem_enabled"
picture | diff "$work/before" - || { echo "FAILED: undo left something" && exit 1; }
[ ! -e "$root/run/sluice-tune/state" ] || { echo "FAILED: undo left its state" && exit 1; }
run undo
expect_line 'nothing to undo'

for wrong in '' 'frob' 'show --cores' 'show --cores 3-2' 'show --cores 0-3' 'show --cores 1,,2' 'show --interface ../x' \
    'show --rx-ring many' 'show --what 3' 'show --irq-cpus 1' 'show --cores 2 --irq-cpus 2'; do
    # shellcheck disable=SC2086 # words are arguments
    run $wrong
    expect_code 2 "\"$wrong\""
done
for host in 'show --cores 2-5' 'show --interface eth9' 'show --interface eth0'; do
    # shellcheck disable=SC2086 # as above
    run $host
    expect_code 4 "\"$host\""
done
run show --interface eth0 --force
expect_code 1 "--force"

echo "sluice-tune: $tests checks hold"
