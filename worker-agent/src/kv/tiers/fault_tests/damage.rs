//! Damage to files of the tiers, done while the tiers use them.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PAGE: usize = 4096;
/// Unit of what a disk writes at once.
const SECTOR: u64 = 512;
/// Pages and files that are kept to be put back later.
const OLD_MAX: usize = 32;

/// Damages files, by a seed.
pub(super) struct Vandal {
    rng: SmallRng,
    old_pages: Vec<(PathBuf, u64, Vec<u8>)>,
    old_files: Vec<(PathBuf, Vec<u8>)>,
}

impl Vandal {
    pub(super) fn new(seed: u64) -> Self {
        let rng = SmallRng::seed_from_u64(seed);
        Self { rng, old_pages: Vec::new(), old_files: Vec::new() }
    }

    /// Damages bytes of a segment, in place. Whether there was one.
    pub(super) fn strike_segment(&mut self, folder: &Path) -> bool {
        self.pick(folder, is_segment).is_some_and(|path| self.strike(&path).is_ok())
    }

    /// Damages an object, or lets it be another one or none. Whether there was one.
    pub(super) fn strike_object(&mut self, folder: &Path) -> bool {
        let Some(path) = self.pick(folder, |_| true) else { return false };
        match self.rng.random_range(0..8) {
            0 => fs::remove_file(path).is_ok(),
            1 => {
                let other = self.pick(folder, |_| true);
                let read = other.and_then(|other| fs::read(other).ok());
                read.is_some_and(|read| fs::write(path, read).is_ok())
            }
            _ => self.strike(&path).is_ok(),
        }
    }

    /// Makes a segment what it was some lives before, as lost writes leave it. Whether one was.
    pub(super) fn swap_segment(&mut self, folder: &Path) -> bool {
        let Some(path) = self.pick(folder, is_segment) else { return false };
        let Ok(now) = fs::read(&path) else { return false };
        let at = self.old_files.iter().position(|(of, _)| *of == path);
        let old = at.map(|at| self.old_files.swap_remove(at).1);
        if self.old_files.len() < OLD_MAX {
            self.old_files.push((path.clone(), now));
        }
        old.is_some_and(|old| fs::write(path, old).is_ok())
    }

    fn pick(&mut self, folder: &Path, is_wanted: fn(&Path) -> bool) -> Option<PathBuf> {
        let mut files = Vec::new();
        walk(folder, &mut files);
        files.retain(|path| is_wanted(path));
        // The order of a directory is up to the file system.
        files.sort_unstable();
        files.choose(&mut self.rng).cloned()
    }

    fn strike(&mut self, path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let bytes = file.metadata()?.len();
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let at = self.rng.random_range(0..bytes);
        let page = at / PAGE as u64 * PAGE as u64;
        match self.rng.random_range(0..10) {
            0..4 => {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at)?;
                file.write_all_at(&[byte[0] ^ (1 << self.rng.random_range(0..8))], at)
            }
            // A torn write: some sectors have other bytes.
            4..6 => {
                let sector = at / SECTOR * SECTOR;
                let garbage = vec![self.rng.random::<u8>(); (bytes - sector).min(SECTOR) as usize];
                file.write_all_at(&garbage, sector)
            }
            // A misplaced write.
            6 => {
                let from = self.rng.random_range(0..bytes) / PAGE as u64 * PAGE as u64;
                let moved = read_page(&file, from)?;
                file.write_all_at(&moved[..moved.len().min((bytes - page) as usize)], page)
            }
            // A lost write: a page is what it was before.
            7 | 8 => {
                let now = read_page(&file, page)?;
                if self.old_pages.len() >= OLD_MAX {
                    let old = self.rng.random_range(0..OLD_MAX);
                    let (path, page, was) = self.old_pages.swap_remove(old);
                    OpenOptions::new().write(true).open(path)?.write_all_at(&was, page)?;
                }
                self.old_pages.push((path.to_owned(), page, now));
                Ok(())
            }
            // A short file, the rest of which comes back as zeros.
            _ => {
                file.set_len(at)?;
                file.set_len(bytes)
            }
        }
    }
}

fn is_segment(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment"))
}

/// The files below a folder. What vanishes meanwhile is left out.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            walk(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn read_page(file: &File, at: u64) -> io::Result<Vec<u8>> {
    let mut page = vec![0; PAGE];
    let read = file.read_at(&mut page, at)?;
    page.truncate(read);
    Ok(page)
}
