//! Reading the tables of all segments at the start. No payload is read.

use super::codec::DescriptorCodec;
use super::device::{Device, Job, JobMemory};
use super::format::{
    DESCRIPTOR_BYTES, Descriptor, DescriptorRead, Geometry, PAGE_BYTES, PAGE_SLOTS, Page, Place,
};
use std::fs::File;
use std::sync::Arc;

/// The tables of all segments, as far as they can be read.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The descriptors of each segment by slot.
    pub(super) tables: Vec<Vec<(u32, Descriptor)>>,
    /// Descriptors that are torn.
    pub(super) torn: u64,
    /// Segments whose table cannot be read.
    pub(super) unreadable: u64,
}

/// Reads the tables of `files`, so many at a time.
pub(super) fn scan(
    device: &mut dyn Device,
    files: &[Arc<File>],
    codec: &DescriptorCodec,
    geometry: Geometry,
    at_once: usize,
) -> Scan {
    let mut found = Scan { tables: vec![Vec::new(); files.len()], ..Scan::default() };
    let mut waiting = (0_u64..).zip(files);
    let mut under_way = 0;
    let mut done = Vec::new();
    loop {
        for (ticket, file) in waiting.by_ref().take(at_once - under_way) {
            let memory = JobMemory::Pages(Page::zeros(geometry.table_pages()));
            device.start(Job { ticket, file: file.clone(), offset: 0, is_write: false, memory });
            under_way += 1;
        }
        if under_way == 0 {
            return found;
        }
        device.wait(&mut done);
        for ended in done.drain(..) {
            under_way -= 1;
            let JobMemory::Pages(pages) = &ended.job.memory else { continue };
            let is_whole =
                ended.result.as_ref().is_ok_and(|moved| *moved == ended.job.memory.bytes());
            if !is_whole {
                let (segment, result) = (ended.job.ticket, &ended.result);
                tracing::warn!(segment, ?result, "the table of a disk segment cannot be read");
                found.unreadable += 1;
                continue;
            }
            let segment = ended.job.ticket as u32;
            let table = read_table(pages, segment, codec, geometry);
            found.tables[segment as usize] = table.blocks;
            found.torn += table.torn;
        }
    }
}

struct Table {
    blocks: Vec<(u32, Descriptor)>,
    torn: u64,
}

fn read_table(pages: &[Page], segment: u32, codec: &DescriptorCodec, geometry: Geometry) -> Table {
    let mut table = Table { blocks: Vec::new(), torn: 0 };
    let descriptors = pages.iter().flat_map(|page| page.0.as_chunks::<DESCRIPTOR_BYTES>().0);
    for (slot, bytes) in (0..geometry.segment_slots).zip(descriptors) {
        match codec.decode(bytes, Place { segment, slot }) {
            DescriptorRead::Empty => {}
            DescriptorRead::Whole(read) if read.length as usize == geometry.block_bytes => {
                table.blocks.push((slot, read));
            }
            DescriptorRead::Whole(_) | DescriptorRead::Torn => table.torn += 1,
        }
    }
    table
}

/// A page of a table as bytes: the descriptors of its blocks, and zeros.
pub(super) fn write_page(
    blocks: &[(u32, Descriptor)],
    segment: u32,
    codec: &DescriptorCodec,
) -> Page {
    let mut page = Page([0; PAGE_BYTES]);
    for (slot, descriptor) in blocks {
        let at = (slot % PAGE_SLOTS) as usize * DESCRIPTOR_BYTES;
        let bytes = codec.encode(descriptor, Place { segment, slot: *slot });
        page.0[at..at + DESCRIPTOR_BYTES].copy_from_slice(&bytes);
    }
    page
}
