//! `servers test`: starts a server in a process of its own and lists its tools, without a gateway.

use std::{sync::Arc, time::Duration};

use super::edit::{ConfigEditor, add_values, read_target};
use crate::{
    args::{ConnectArgs, servers::TestArgs},
    exit::{Exit, Failure},
    output::{Output, Style, cell, one_line, print_note, print_table},
};
use countersign_config::{
    UpstreamConfig,
    edit::{find_server, paste::PastedServer, server_for_trial},
};
use countersign_domain::text::plural;
use countersign_upstream::trial::{TrialReport, try_server};

/// The maximum size of a message from the server, in bytes.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

pub(super) fn test(args: &TestArgs, connect: &ConnectArgs, out: &mut Output) -> Result<Exit, Failure> {
    let editor = ConfigEditor::open(connect)?;
    let target = &args.target;
    let servers = if target.is_given() {
        read_target(target, args.name.as_deref())?
    } else {
        let name = args.name.clone().unwrap_or_default();
        let mut settings = find_server(editor.file.text(), &name)
            .map_err(|error| Failure::new(Exit::NotFound, one_line(&error.to_string())))?;
        add_values(&mut settings, target)?;
        vec![PastedServer { name, settings, notes: Vec::new() }]
    };
    let mut exit = Exit::Ok;
    for server in servers {
        let path = editor.file.path();
        let trial = server_for_trial(path, &server.name, &server.settings, &editor.flags, &editor.env)?;
        trial.register_secrets();
        let report = run_trial(&trial.config, Duration::from_secs(args.timeout))?;
        if !report.works {
            exit = Exit::Failed;
        }
        if connect.json {
            out.write_json(&serde_json::to_string(&report).unwrap_or_default())?;
        } else {
            print_report(&server.name, &report, out)?;
        }
    }
    Ok(exit)
}

/// Runs a trial on this thread.
fn run_trial(config: &Arc<UpstreamConfig>, limit: Duration) -> Result<TrialReport, Failure> {
    // A server without `cwd` runs in this folder.
    let folder = tempfile::tempdir().map_err(|error| Failure::new(Exit::Unavailable, error))?;
    let trial = try_server(config, folder.path(), MAX_MESSAGE_BYTES, limit);
    Ok(actix_web::rt::System::new().block_on(trial))
}

fn print_report(name: &str, report: &TrialReport, out: &mut Output) -> Result<(), Failure> {
    match &report.error {
        None => {
            let era = report.era.map(|era| if era == "stateless" { "stateless era" } else { "handshake era" });
            let details: Vec<&str> = [report.own_name.as_deref(), era].into_iter().flatten().collect();
            let tools = plural(report.tools.len(), "tool");
            out.write_styled_line(Style::Green, &format!("{name} works: {}, {tools}", details.join(", ")))?;
        }
        Some(error) => out.write_styled_line(Style::Red, &format!("{name} {error}"))?,
    }
    if report.needs_account {
        out.write_line("It asks for an account, which people connect once the server is configured.")?;
    }
    if !report.tools.is_empty() {
        let rows = report.tools.iter().map(|tool| {
            let claim = if tool.claims_read { "says that it only reads" } else { "may write" };
            let offered = if tool.offered { "" } else { "left out by `tools`" };
            [cell(Style::Plain, &tool.name), cell(Style::Plain, claim), cell(Style::Dim, offered)]
        });
        print_table(["TOOL", "EFFECT", ""], rows.collect(), out.width, out)?;
    }
    for note in &report.notes {
        out.write_styled_line(Style::Yellow, &format!("! {note}"))?;
    }
    if report.error.is_some() && !report.stderr.is_empty() {
        out.write_line("Its last lines on stderr:")?;
        for line in &report.stderr {
            out.write_styled_line(Style::Dim, &format!("  {line}"))?;
        }
    }
    out.finish()?;
    print_note("Nothing was changed.");
    Ok(())
}
