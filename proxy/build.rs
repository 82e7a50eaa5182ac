//! Takes the files of Swagger UI that `/docs` needs out of their archive. They stay compressed: what the archive
//! has of a file becomes a gzip file by a header and a trailer.
//!
//! Source: RFC 1952, section 2.3.

use rawzip::{CompressionMethod, ZipArchive};
use std::error::Error;
use std::path::Path;
use utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED;

const FILES: [&str; 2] = ["swagger-ui-bundle.js", "swagger-ui.css"];
/// Magic number, deflate, no flags, no time, no extra flags, an unknown operating system.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = std::env::var("OUT_DIR")?;
    let archive = ZipArchive::from_slice(SWAGGER_UI_VENDORED)?;
    let mut entries = archive.entries();
    let mut packed = 0;
    while let Some(entry) = entries.next_entry()? {
        let path = entry.file_path().try_normalize()?;
        let is_file = |file: &&&str| path.as_ref().ends_with(&format!("/dist/{file}"));
        let Some(file) = FILES.iter().find(is_file) else { continue };
        if entry.compression_method() != CompressionMethod::DEFLATE {
            return Err(format!("{file} is not compressed with deflate").into());
        }
        let data = archive.get_entry(entry.wayfinder())?.data();
        let bytes = u32::try_from(entry.uncompressed_size_hint())?;
        let trailer = [entry.crc32().to_le_bytes(), bytes.to_le_bytes()].concat();
        let gzip = [&GZIP_HEADER, data, &trailer].concat();
        std::fs::write(Path::new(&out).join(format!("{file}.gz")), gzip)?;
        packed += 1;
    }
    match packed == FILES.len() {
        true => Ok(()),
        false => Err(format!("the archive has {packed} of {FILES:?}").into()),
    }
}
