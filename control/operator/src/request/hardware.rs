//! Hardware of a request: as its document says, and otherwise as the cluster's nodes do.

use serde_json::Value;
use stator_plan::{GPUS, Gpu};

/// Most GPUs that are taken from nodes without being asked for: Dynamo's limit.
const TOTAL_MAX: u32 = 32;

/// GPUs of a cluster, all of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ClusterGpus {
    /// Their kind.
    pub(crate) gpu: &'static Gpu,
    /// GPUs of a node.
    pub(crate) per_node: u32,
    /// GPUs of all nodes, at most [`TOTAL_MAX`].
    pub(crate) total: u32,
}

/// The GPU of a `gpuSku`, such as `h100_sxm` or `gb200_sxm`.
pub(crate) fn of_sku(sku: &str) -> Option<&'static Gpu> {
    let plain = sku.to_ascii_lowercase().replace('_', "-");
    // Superchips have one form, which Dynamo calls SXM.
    Gpu::named(&plain).or_else(|| Gpu::named(plain.strip_suffix("-sxm")?))
}

/// The GPUs of nodes, as GPU feature discovery labels them: of the kind `wanted`, or else of the
/// kind that most nodes have, and of these the largest.
pub(crate) fn of_nodes(nodes: &[Value], wanted: Option<&Gpu>) -> Option<ClusterGpus> {
    let mut kinds: Vec<(ClusterGpus, u32)> = Vec::new();
    for node in nodes {
        let Some((gpu, count)) = of_node(node) else { continue };
        if wanted.is_some_and(|wanted| wanted.name != gpu.name) {
            continue;
        }
        match kinds.iter_mut().find(|(known, _)| known.gpu.name == gpu.name) {
            Some((known, nodes)) => {
                known.per_node = known.per_node.min(count);
                known.total = known.total.saturating_add(count);
                *nodes += 1;
            }
            None => kinds.push((ClusterGpus { gpu, per_node: count, total: count }, 1)),
        }
    }
    let better = |of: &&(ClusterGpus, u32)| (of.1, of.0.gpu.memory as u64);
    let (best, _) = kinds.iter().max_by_key(better)?;
    Some(ClusterGpus { total: best.total.min(TOTAL_MAX), ..*best })
}

fn of_node(node: &Value) -> Option<(&'static Gpu, u32)> {
    let labels = &node["metadata"]["labels"];
    let product = labels["nvidia.com/gpu.product"].as_str()?;
    let count = labels["nvidia.com/gpu.count"].as_str()?.parse().ok().filter(|count| *count > 0)?;
    Some((of_product(product)?, count))
}

/// The GPU of a product name, such as `NVIDIA-H100-80GB-HBM3` or `NVIDIA-A100-PCIE-40GB`.
fn of_product(product: &str) -> Option<&'static Gpu> {
    let product = product.to_ascii_lowercase();
    let words: Vec<&str> = product.split(['-', ' ']).collect();
    let form = if words.contains(&"pcie") { "pcie" } else { "sxm" };
    let is_family = |gpu: &&Gpu| gpu.name.split('-').next().is_some_and(|of| words.contains(&of));
    let family = || GPUS.iter().filter(is_family);
    family().find(|gpu| gpu.name.ends_with(form)).or_else(|| family().next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(product: &str, count: u32) -> Value {
        json!({ "metadata": { "labels": {
            "nvidia.com/gpu.product": product, "nvidia.com/gpu.count": count.to_string(),
        } } })
    }

    #[test]
    fn names_of_dynamo_and_of_products_are_understood() {
        for (sku, name) in [("h100_sxm", "h100-sxm"), ("gb200_sxm", "gb200"), ("L40S", "l40s")] {
            assert_eq!(of_sku(sku).map(|gpu| gpu.name), Some(name));
        }
        assert_eq!(of_sku("mi300x"), None);
        for (product, name) in [
            ("NVIDIA-H100-80GB-HBM3", "h100-sxm"),
            ("NVIDIA-A100-PCIE-40GB", "a100-pcie"),
            ("NVIDIA-GB200", "gb200"),
            ("NVIDIA-L40S", "l40s"),
        ] {
            assert_eq!(of_product(product).map(|gpu| gpu.name), Some(name), "{product}");
        }
        assert_eq!(of_product("NVIDIA-GeForce-RTX-4090"), None);
    }

    #[test]
    fn the_kind_of_most_nodes_counts_and_its_gpus_are_added() {
        let nodes = [
            node("NVIDIA-H100-80GB-HBM3", 8),
            node("NVIDIA-L40S", 4),
            node("NVIDIA-L40S", 2),
            json!({}),
        ];
        let found = of_nodes(&nodes, None).expect("there are GPUs");
        assert_eq!((found.gpu.name, found.per_node, found.total), ("l40s", 2, 6));
        let asked = of_nodes(&nodes, of_sku("h100_sxm")).expect("there are GPUs");
        assert_eq!((asked.gpu.name, asked.total), ("h100-sxm", 8));
        assert_eq!(of_nodes(&nodes[3..], None), None);
        let many = vec![node("NVIDIA-L40S", 8); 9];
        assert_eq!(of_nodes(&many, None).expect("there are GPUs").total, TOTAL_MAX);
    }
}
