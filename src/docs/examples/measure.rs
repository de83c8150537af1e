//! Measures the search of documents: `scripts/bench knowledge` runs it.
//!
//! `measure speed DOCUMENTS SEARCHES` on documents that are made up, and `measure quality FOLDER QUESTIONS URL MODEL` on
//! those below a folder.
#![allow(clippy::print_stdout, reason = "what is measured is what it prints")]

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
            let work = testing::quality(Path::new(folder), Path::new(questions), &endpoint);
            println!("{}", actix::System::new().block_on(work)?);
        }
        _ => return Err("measure speed DOCUMENTS SEARCHES | measure quality FOLDER QUESTIONS URL MODEL".into()),
    }
    Ok(())
}
