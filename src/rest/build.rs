//! Bundles and compresses the files that a release build contains: those of the dashboard and the OpenAPI document.
//!
//! The same files give the same program, because their names are sorted and the header of gzip has no time.

#![allow(clippy::print_stdout, reason = "Cargo reads what this script prints")]

use std::{
    env, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, read::GzEncoder};

mod bundle;

fn main() -> io::Result<()> {
    println!("cargo::rustc-check-cfg=cfg(embedded_files)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=bundle.rs");
    // A debug build reads the files when they are requested.
    if variable("PROFILE")? == "debug" {
        return Ok(());
    }
    println!("cargo::rustc-cfg=embedded_files");
    println!("cargo::rerun-if-changed=openapi.json");
    println!("cargo::rerun-if-changed=assets");
    let mut files = vec![("openapi.json".to_owned(), fs::read("openapi.json")?)];
    for entry in fs::read_dir("assets")? {
        let path = entry?.path();
        if path.is_file() {
            files.push((path.display().to_string(), fs::read(&path)?));
        }
    }
    for name in bundle::NAMES {
        files.push((format!("assets/{name}"), bundle::join("assets", name)?.into_bytes()));
    }
    files.sort();
    let out = PathBuf::from(variable("OUT_DIR")?);
    let mut table = format!("static FILES: [(&str, EmbeddedFile); {}] = [\n", files.len());
    for (name, content) in files {
        write(&out.join(format!("{name}.gz")), &compress(&content)?)?;
        table += &format!(
            "({name:?}, EmbeddedFile::new(FileContent::Gzip(Bytes::from_static(include_bytes!(\"{name}.gz\"))))),\n"
        );
    }
    table += "];\n";
    write(&out.join("embedded_files.rs"), table.as_bytes())
}

/// Returns a variable that Cargo sets.
fn variable(name: &str) -> io::Result<String> {
    env::var(name).map_err(|error| io::Error::other(format!("{name}: {error}")))
}

fn compress(content: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressed = Vec::new();
    GzEncoder::new(content, Compression::best()).read_to_end(&mut compressed)?;
    Ok(compressed)
}

/// Writes a file and the folders above it.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content)
}
