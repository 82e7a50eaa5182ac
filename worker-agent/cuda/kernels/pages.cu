// Copies pages of KV between two layouts, 16 bytes at a time.
//
// A page is `count[0] * count[1] * count[2]` runs of `units` times 16 bytes. Each block of threads
// works for one pair of pages (`blockIdx.y`); neighbouring threads write neighbouring units.
// Made into PTX by build.py; pages_cpu.c compiles it for the processor.

#ifdef __CUDACC__
#define KV_KERNEL extern "C" __global__ void
#define KV_PARAMETER const __grid_constant__
#endif

#define PAIRS_MAX 256

// As `KernelCall` in src/kernel.rs.
struct Pages {
    unsigned long long from, to;
    unsigned long long from_page, to_page;
    unsigned long long from_step[3], to_step[3];
    unsigned int count[3];
    unsigned int units;
    unsigned int pairs[PAIRS_MAX][2];
};

KV_KERNEL stator_kv_pages(KV_PARAMETER struct Pages pages) {
    const unsigned long long from =
        pages.from + pages.pairs[blockIdx.y][0] * pages.from_page;
    const unsigned long long to = pages.to + pages.pairs[blockIdx.y][1] * pages.to_page;
    const unsigned int units = pages.count[0] * pages.count[1] * pages.count[2] * pages.units;
    const unsigned int threads = gridDim.x * blockDim.x;
    for (unsigned int at = blockIdx.x * blockDim.x + threadIdx.x; at < units; at += threads) {
        const unsigned int unit = at % pages.units;
        const unsigned int run = at / pages.units;
        const unsigned int inner = run % pages.count[2];
        const unsigned int middle = run / pages.count[2] % pages.count[1];
        const unsigned int outer = run / pages.count[2] / pages.count[1];
        const unsigned long long source = outer * pages.from_step[0] +
            middle * pages.from_step[1] + inner * pages.from_step[2] + unit * 16ull;
        const unsigned long long target = outer * pages.to_step[0] +
            middle * pages.to_step[1] + inner * pages.to_step[2] + unit * 16ull;
        *(uint4 *)(to + target) = *(const uint4 *)(from + source);
    }
}
