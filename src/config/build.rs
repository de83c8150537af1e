//! Compresses the shipped recipes and known reads (`config/previews`, `config/reads`), which `shipped_recipes.rs` embeds.

#![allow(clippy::print_stdout, reason = "Cargo reads what this script prints")]

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::DeflateEncoder};

fn main() -> io::Result<()> {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config");
    let out = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?);
    for folder in ["previews", "reads"] {
        println!("cargo::rerun-if-changed={}", config.join(folder).display());
        fs::create_dir_all(out.join(folder))?;
        for file in fs::read_dir(config.join(folder))? {
            let file = file?;
            let compressed = compress(&fs::read(file.path())?)?;
            fs::write(out.join(folder).join(file.file_name()), compressed)?;
        }
    }
    Ok(())
}

/// Compresses a text without a header, so that the same text always gives the same bytes.
fn compress(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text)?;
    encoder.finish()
}
