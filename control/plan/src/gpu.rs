//! GPUs as their makers describe them.

use crate::precision::Precision;

/// One model of GPU in the usual server around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Its name on the command line.
    pub name: &'static str,
    /// Memory, bytes.
    pub memory: f64,
    /// Memory bandwidth, bytes per second.
    pub bandwidth: f64,
    /// Dense bf16 arithmetic, operations per second.
    bf16: f64,
    /// Dense 8-bit arithmetic; that of bf16 where the hardware has none.
    fp8: f64,
    /// Dense 4-bit arithmetic; that of 8 bits where the hardware has none.
    fp4: f64,
    /// Bandwidth to another GPU of the server, one way, bytes per second.
    pub link: f64,
    /// Bandwidth to a GPU of another server, one way, bytes per second.
    pub network: f64,
    /// GPUs that reach each other over `link`.
    pub per_node: u32,
}

/// All known GPUs. Source: NVIDIA's datasheets of each, figures without sparsity; the network is
/// what its reference server has for each GPU.
pub const GPUS: &[Gpu] = &[
    Gpu::new("a100-sxm", [80.0, 2_039.0], [312.0, 312.0, 312.0], [300.0, 25.0], 8),
    Gpu::new("a100-pcie", [80.0, 1_935.0], [312.0, 312.0, 312.0], [32.0, 12.5], 8),
    Gpu::new("l4", [24.0, 300.0], [121.0, 242.0, 242.0], [32.0, 12.5], 8),
    Gpu::new("l40s", [48.0, 864.0], [362.0, 733.0, 733.0], [32.0, 25.0], 8),
    Gpu::new("h100-pcie", [80.0, 2_000.0], [756.0, 1_513.0, 1_513.0], [64.0, 25.0], 8),
    Gpu::new("h100-sxm", [80.0, 3_350.0], [989.0, 1_979.0, 1_979.0], [450.0, 50.0], 8),
    Gpu::new("h200-sxm", [141.0, 4_800.0], [989.0, 1_979.0, 1_979.0], [450.0, 50.0], 8),
    Gpu::new("b200-sxm", [180.0, 8_000.0], [2_250.0, 4_500.0, 9_000.0], [900.0, 100.0], 8),
    Gpu::new("b300-sxm", [270.0, 8_000.0], [2_250.0, 4_500.0, 13_500.0], [900.0, 100.0], 8),
    Gpu::new("gb200", [186.0, 8_000.0], [2_500.0, 5_000.0, 10_000.0], [900.0, 100.0], 72),
    Gpu::new("gb300", [279.0, 8_000.0], [2_500.0, 5_000.0, 15_000.0], [900.0, 100.0], 72),
];

impl Gpu {
    /// Memory in GB and its GB/s; arithmetic of bf16, 8 and 4 bits in Tflop/s; link and network in
    /// GB/s.
    const fn new(
        name: &'static str,
        [memory, bandwidth]: [f64; 2],
        [bf16, fp8, fp4]: [f64; 3],
        [link, network]: [f64; 2],
        per_node: u32,
    ) -> Self {
        Self {
            name,
            memory: memory * 1e9,
            bandwidth: bandwidth * 1e9,
            bf16: bf16 * 1e12,
            fp8: fp8 * 1e12,
            fp4: fp4 * 1e12,
            link: link * 1e9,
            network: network * 1e9,
            per_node,
        }
    }

    /// The GPU of this name; `_` is as good as `-`, and capitals as small letters.
    pub fn named(name: &str) -> Option<&'static Self> {
        let name = name.to_ascii_lowercase().replace('_', "-");
        GPUS.iter().find(|gpu| gpu.name == name)
    }

    /// The fault of a name that no GPU has, with the names that there are and the nearest of them.
    pub fn unknown(name: &str) -> String {
        let known: Vec<&str> = GPUS.iter().map(|gpu| gpu.name).collect();
        let (known, nearest) = (known.join(", "), Self::nearest(name).name);
        format!("{name:?} is none of {known}; the nearest is {nearest}")
    }

    /// The GPU whose name is most like this one.
    fn nearest(name: &str) -> &'static Self {
        let name = name.to_ascii_lowercase().replace('_', "-");
        let alike = |gpu: &&Self| strsim::jaro_winkler(gpu.name, &name);
        let nearest = GPUS.iter().max_by(|a, b| alike(a).total_cmp(&alike(b)));
        nearest.expect("there are GPUs")
    }

    /// This GPU with another memory, bytes, in a server of so many.
    pub fn in_server(self, memory: f64, per_node: u32) -> Self {
        Self { memory, per_node, ..self }
    }

    /// Operations per second with weights of this precision. Integer weights are unpacked to bf16
    /// before they are multiplied.
    pub fn flops(&self, weights: Precision) -> f64 {
        match weights {
            Precision::Bf16 | Precision::Int4 => self.bf16,
            Precision::Fp8 => self.fp8,
            Precision::Fp4 => self.fp4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_as_people_write_them() {
        assert_eq!(Gpu::named("H100_SXM").map(|gpu| gpu.name), Some("h100-sxm"));
        assert_eq!(Gpu::named("abacus"), None);
    }

    #[test]
    fn a_name_that_is_nearly_right_leads_to_the_right_one() {
        for (name, nearest) in [("h1000-sxm", "h100-sxm"), ("L40", "l40s"), ("gb-200", "gb200")] {
            assert_eq!(Gpu::nearest(name).name, nearest, "{name}");
        }
    }

    #[test]
    fn narrower_weights_are_never_slower() {
        for gpu in GPUS {
            let flops = [Precision::Bf16, Precision::Fp8, Precision::Fp4].map(|p| gpu.flops(p));
            assert!(flops.is_sorted(), "{}", gpu.name);
        }
    }
}
