# For scripts in the guest: `verified` has the copies of `web` compared, and fails unless all were and are the same.
# A verify repairs what differs, and succeeds: what it says is looked at. One that could not compare all is done again.
verified() {
    for _ in 1 2 3 4 5 6; do
        lockstep wait web --for in-sync --timeout 240
        if lockstep resource verify web --wait > /tmp/verified 2>&1; then break; fi
        cat /tmp/verified; if grep differed /tmp/verified; then exit 1; fi
    done
    cat /tmp/verified; grep "all replicas were compared, and are the same" /tmp/verified
}
