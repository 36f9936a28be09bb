/* refuse io_uring|chmod ERRNO PROGRAM ARGUMENTS...
 *
 * Becomes PROGRAM, with the system calls of that family answered by ERRNO, as container runtimes refuse
 * io_uring. With 0 for ERRNO they do nothing and say that it went well. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const int io_uring_calls[] = {SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register};
/* Not fchmod: a descriptor is no file yet that others see. */
static const int chmod_calls[] = {
#ifdef SYS_chmod
    SYS_chmod,
#endif
#ifdef SYS_fchmodat2
    SYS_fchmodat2,
#endif
    SYS_fchmodat,
};

int main(int count, char **words) {
    if (count < 4) return 64;
    int is_ring = strcmp(words[1], "io_uring") == 0;
    const int *calls = is_ring ? io_uring_calls : chmod_calls;
    size_t call_count = is_ring ? sizeof io_uring_calls / sizeof *io_uring_calls
                                : sizeof chmod_calls / sizeof *chmod_calls;
    struct sock_filter filter[16];
    unsigned short at = 0;
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                                offsetof(struct seccomp_data, nr));
    for (size_t call = 0; call < call_count; call++) {
        filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[call], 0, 1);
        filter[at++] = (struct sock_filter)BPF_STMT(
            BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (atoi(words[2]) & SECCOMP_RET_DATA));
    }
    filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = at, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("no filter can be set");
        return 69;
    }
    execv(words[3], words + 3);
    perror(words[3]);
    return 66;
}
