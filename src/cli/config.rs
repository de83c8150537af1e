//! `config check` and `config show`.

use super::{
    args::{ServeArgs, ShowArgs},
    configuration,
    exit::{Exit, Failure},
    output::{Output, remark},
};
use crate::config::{Loaded, show};

pub fn check(args: &ServeArgs, out: &mut Output) -> Result<Exit, Failure> {
    let loaded = configuration(&args.flags())?;
    warn(&loaded);
    let from = match &loaded.file {
        Some(file) => file.display().to_string(),
        None => "the built-in defaults and the environment".to_owned(),
    };
    out.line(&format!("The configuration is fine ({from})."))?;
    Ok(Exit::Ok)
}

pub fn show(args: &ShowArgs, out: &mut Output) -> Result<Exit, Failure> {
    let loaded = configuration(&args.serve.flags())?;
    warn(&loaded);
    if args.json {
        let text = serde_json::to_string_pretty(&show::json(&loaded.settings)).unwrap_or_default();
        out.line(&text)?;
    } else {
        out.text(&show::yaml(&loaded.settings))?;
    }
    Ok(Exit::Ok)
}

fn warn(loaded: &Loaded) {
    for warning in &loaded.warnings {
        remark(&format!("warning: {warning}"));
    }
}
