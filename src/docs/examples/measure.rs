//! Measures the search of documents; `scripts/bench knowledge` runs it.
//!
//! `measure speed DOCUMENTS SEARCHES` uses generated documents, and `measure quality FOLDER QUESTIONS URL MODEL` uses
//! those in a folder.
#![allow(clippy::print_stdout, reason = "the program prints its measurements")]

use std::{error::Error, path::Path, time::Duration};

use countersign_config::ModelEndpoint;
use countersign_docs::testing;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["speed", documents, searches] => {
            let dir = tempfile::tempdir()?;
            let measured = testing::speed(dir.path(), documents.parse()?, searches.parse()?, 384)?;
            println!("{measured:#?}");
        }
        ["quality", folder, questions, url, model] => {
            let endpoint = ModelEndpoint {
                url: (*url).to_owned(),
                model: (*model).to_owned(),
                key: None,
                timeout: Duration::from_secs(120),
            };
            let work = testing::measure_quality(Path::new(folder), Path::new(questions), &endpoint);
            println!("{}", actix::System::new().block_on(work)?);
        }
        _ => return Err("measure speed DOCUMENTS SEARCHES | measure quality FOLDER QUESTIONS URL MODEL".into()),
    }
    Ok(())
}
