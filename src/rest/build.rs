//! Compresses the files that a release build contains: those of the dashboard and the OpenAPI document.
//!
//! The same files give the same program, because their names are sorted and the header of gzip has no time.

#![allow(clippy::print_stdout, reason = "Cargo reads what this script prints")]

use std::{
    env, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, read::GzEncoder};

fn main() -> io::Result<()> {
    println!("cargo::rustc-check-cfg=cfg(embedded_files)");
    println!("cargo::rerun-if-changed=build.rs");
    // A debug build reads the files when they are requested.
    if variable("PROFILE")? == "debug" {
        return Ok(());
    }
    println!("cargo::rustc-cfg=embedded_files");
    println!("cargo::rerun-if-changed=openapi.json");
    println!("cargo::rerun-if-changed=assets");
    let mut names = vec!["openapi.json".to_owned()];
    add_names("assets", &mut names)?;
    names.sort();
    let out = PathBuf::from(variable("OUT_DIR")?);
    let mut table = format!("static FILES: [(&str, EmbeddedFile); {}] = [\n", names.len());
    for name in names {
        write(&out.join(format!("{name}.gz")), &compress(&name)?)?;
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

/// Adds the names of all files below a folder.
fn add_names(folder: &str, names: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{folder}/{}", entry.file_name().display());
        if entry.file_type()?.is_dir() { add_names(&name, names)? } else { names.push(name) }
    }
    Ok(())
}

fn compress(name: &str) -> io::Result<Vec<u8>> {
    let mut compressed = Vec::new();
    GzEncoder::new(fs::File::open(name)?, Compression::best()).read_to_end(&mut compressed)?;
    Ok(compressed)
}

/// Writes a file and the folders above it.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content)
}
