/* A wall clock for one process, set by a file while it runs: the file's first byte is by how many hours it is ahead of
 * the true time, as a signed number. Loaded before the C library (LD_PRELOAD); the variable WALL_CLOCK_HOURS names the
 * file. It allocates nothing: allocators look at the clock while they begin.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile signed char *hours_ahead;

__attribute__((constructor)) static void open_file(void) {
    const char *path = getenv("WALL_CLOCK_HOURS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (mapped != MAP_FAILED) hours_ahead = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    /* Clocks that a step moves; the monotonic ones and those of CPU time go on. */
    int steps = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
    if (result == 0 && steps && hours_ahead) time->tv_sec += *hours_ahead * 3600;
    return result;
}
