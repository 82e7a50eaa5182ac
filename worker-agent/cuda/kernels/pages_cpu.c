/* The kernel on the processor, one thread after the other, for a test.
 *
 * Reads from its standard input: bytes of source and target (two 64-bit numbers), blocks for a page,
 * threads of a block and pairs (three 32-bit numbers), `struct Pages` with addresses counted from 0,
 * and the source. Writes the target, which begins as zeros. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { unsigned int x, y, z, w; } uint4;
typedef struct { unsigned int x, y; } place;
static place blockIdx, threadIdx, gridDim, blockDim;

#define KV_KERNEL static void
#define KV_PARAMETER
#include "pages.cu"

static void take(void *to, size_t bytes) {
    if (fread(to, 1, bytes, stdin) != bytes) exit(2);
}

int main(void) {
    uint64_t sizes[2];
    uint32_t launch[3];
    struct Pages pages;
    take(sizes, sizeof sizes);
    take(launch, sizeof launch);
    take(&pages, sizeof pages);
    char *from = aligned_alloc(16, sizes[0]), *to = aligned_alloc(16, sizes[1]);
    if (!from || !to) return 3;
    take(from, sizes[0]);
    for (size_t at = 0; at < sizes[1]; at++) to[at] = 0;
    pages.from += (uintptr_t)from;
    pages.to += (uintptr_t)to;
    gridDim.x = launch[0], gridDim.y = launch[2], blockDim.x = launch[1];
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)
                stator_kv_pages(pages);
    return fwrite(to, 1, sizes[1], stdout) == sizes[1] ? 0 : 4;
}
