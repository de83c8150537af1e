//! `config check|show|pending|consent`: shows the configuration in the file and in the running gateway, and sends a
//! reviewer's consent to changes that loosen policy.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    args::{
        ConnectArgs, DataArgs, ServeArgs,
        config::{ConsentArgs, ShowArgs},
    },
    client, configuration, data_dir,
    exit::{Exit, Failure},
    output::{Output, Style, confirm, one_line, print_note, should_ask},
    recipes,
};
use countersign_config::{
    LoadedConfig,
    show::{self, ListedSetting},
};
use countersign_reload::{
    pending::{ConfigLineOp, DiffLine, Loosening, PendingPolicy, ValueDiff},
    settings_view::{ActiveConfig, ActiveSetting},
};

pub fn check(args: &ServeArgs, out: &mut Output) -> Result<Exit, Failure> {
    let loaded = configuration(&args.flags())?;
    loaded.check_named_files()?;
    warn(&loaded);
    for warning in recipes::warnings(&loaded.config) {
        print_note(&format!("warning: {}", one_line(&warning)));
    }
    let from = match &loaded.file {
        Some(file) => file.display().to_string(),
        None => "the built-in defaults and the environment".to_owned(),
    };
    out.write_line(&format!("The configuration is valid ({from})."))?;
    Ok(Exit::Ok)
}

pub fn show(args: &ShowArgs, out: &mut Output) -> Result<Exit, Failure> {
    let mut note = None;
    if !args.file {
        match fetch_running_config(args) {
            Ok(RunningConfig::Active(config)) => return print_active(&config, args.json, out),
            Ok(RunningConfig::NoGateway(data)) => {
                note = Some(format!("No gateway serves {data}: this is what the file says."))
            }
            Ok(RunningConfig::InvalidFile) => {}
            Err(reason) => {
                note = Some(format!("This is what the file says; the configuration in force is unknown: {reason}."))
            }
        }
    }
    let loaded = configuration(&args.serve.flags())?;
    warn(&loaded);
    if args.json {
        out.write_json(&serde_json::to_string_pretty(&show::json(&loaded.settings)).unwrap_or_default())?;
    } else {
        out.write_raw(&show::yaml(&loaded.settings))?;
    }
    match note {
        // In YAML the note is a comment in the output itself.
        Some(note) if !args.json => out.write_line(&format!("# {note}"))?,
        Some(note) => print_note(&note),
        None => {}
    }
    Ok(Exit::Ok)
}

fn warn(loaded: &LoadedConfig) {
    for warning in &loaded.warnings {
        print_note(&format!("warning: {warning}"));
    }
}

/// The result of asking for the configuration in force.
enum RunningConfig {
    Active(Box<ActiveConfig>),
    /// No gateway runs on this data directory, and no URL was given.
    NoGateway(String),
    /// The file is invalid; reading it again reports the error.
    InvalidFile,
}

/// Asks the gateway which configuration it has in force; the file may differ from it.
fn fetch_running_config(args: &ShowArgs) -> Result<RunningConfig, String> {
    let data = DataArgs { data: args.serve.data.clone(), config: args.serve.config.clone() };
    let connect = ConnectArgs { url: None, json: args.json, ca: args.ca.clone(), data };
    if client::explicit_url(&connect).map_err(|failure| failure.message)?.is_none() {
        let Ok(dir) = data_dir(&connect.data) else { return Ok(RunningConfig::InvalidFile) };
        if client::local_gateway::read_file(&dir).map_err(|failure| failure.message)?.is_none() {
            return Ok(RunningConfig::NoGateway(dir.display().to_string()));
        }
    }
    let response = client::run(&connect, async |client| client.get(&["config"], &[]).await?.read());
    response.map(|config| RunningConfig::Active(Box::new(config))).map_err(|failure| failure.message)
}

fn print_active(config: &ActiveConfig, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    if json {
        let entry = |setting: &ActiveSetting| {
            let mut fields = json!(setting);
            if let Value::Object(fields) = &mut fields {
                fields.shift_remove("key");
            }
            (setting.key.clone(), fields)
        };
        let all = Value::Object(config.settings.iter().map(entry).collect());
        out.write_json(&serde_json::to_string(&all).unwrap_or_default())?;
        return Ok(Exit::Ok);
    }
    let listed_settings: Vec<ListedSetting> = config.settings.iter().map(to_listed).collect();
    // Written line by line, because the gateway's text is not trusted.
    for line in show::listing(&listed_settings).lines() {
        out.write_line(line)?;
    }
    out.finish()?;
    let file = config.file.as_deref().map_or("no file".into(), one_line);
    print_note(&format!("This is what the gateway has in force; it reads {file}."));
    if let Some(waiting) = &config.waiting {
        let count = waiting.loosenings.len();
        let clause = if count == 1 { "1 change waits".to_owned() } else { format!("{count} changes wait") };
        print_note(&format!(
            "{clause} for a reviewer's consent: see `countersign config pending`, then `countersign config consent`."
        ));
    }
    Ok(Exit::Ok)
}

fn to_listed(setting: &ActiveSetting) -> ListedSetting {
    let waiting = setting
        .waiting
        .iter()
        .map(|Loosening { key, from, to }| format!("waits for consent: {key}: {from} is in force, the file says {to}"));
    let refused = setting.refused.iter().map(|Loosening { key, from, to }| {
        format!("refused by a reviewer: {key}: {from} stays in force, the file says {to}")
    });
    let restart = "the file has another value, which takes effect at the next start".to_owned();
    let notes = waiting.chain(refused).chain(setting.needs_restart.then_some(restart)).collect();
    ListedSetting { key: setting.key.clone(), value: setting.value.clone(), remark: setting.source.clone(), notes }
}

/// `GET /api/reload`
#[derive(Deserialize)]
struct Status {
    waiting: Option<PendingPolicy>,
}

pub fn pending(args: &ConnectArgs, out: &mut Output) -> Result<Exit, Failure> {
    client::run(args, async |client| {
        let answer = client.get(&["reload"], &[]).await?;
        client.print(&answer, out, |status: Status, out| match status.waiting {
            Some(waiting) => print_values(&waiting, out),
            None => Ok(out.write_line("No change of the configuration waits for consent.")?),
        })
    })
}

/// Prints the lines of a configuration with those that are removed and added.
pub fn print_lines(lines: &[DiffLine], out: &mut Output) -> Result<(), Failure> {
    for DiffLine { op, text } in lines {
        let (sign, style) = match op {
            ConfigLineOp::Removed => ('-', Style::Red),
            ConfigLineOp::Added => ('+', Style::Green),
            ConfigLineOp::Same => (' ', Style::Plain),
        };
        out.write_styled_line(style, &format!("{sign} {text}"))?;
    }
    Ok(())
}

/// Prints the pending changes, value by value.
fn print_values(waiting: &PendingPolicy, out: &mut Output) -> Result<(), Failure> {
    out.write_styled_line(Style::Bold, &format!("Waiting since {}:", waiting.since.strftime("%Y-%m-%d %H:%M:%S UTC")))?;
    for loosening in &waiting.loosenings {
        out.write_line(&format!("  {}", loosening.describe()))?;
    }
    for ValueDiff { key, lines, truncated } in &waiting.content {
        out.write_line("")?;
        out.write_styled_line(Style::Bold, key)?;
        print_lines(lines, out)?;
        if *truncated {
            out.write_line("  (Not everything is shown; see the file.)")?;
        }
        if !lines.iter().any(|line| line.op != ConfigLineOp::Same) {
            out.write_line("  (The difference is in a value that is hidden here, such as one of `env` or `headers`.)")?;
        }
    }
    Ok(())
}

pub fn consent(args: &ConsentArgs, out: &mut Output) -> Result<Exit, Failure> {
    client::run(&args.connect, async |client| {
        let status: Status = client.get(&["reload"], &[]).await?.read()?;
        let Some(waiting) = status.waiting else {
            return Err(Failure::new(Exit::NotFound, "no change of the configuration waits for consent"));
        };
        if args.digest.as_ref().is_some_and(|digest| *digest != waiting.digest) {
            let message =
                "the configuration has changed since that digest; look at it again with `countersign config pending`";
            return Err(Failure::new(Exit::Conflict, message));
        }
        let (verdict, question, outcome) = if args.refuse {
            let outcome = "Refused; nothing changes. The file still has the refused values, so correct it, too.";
            ("refuse", "Refuse this", outcome)
        } else {
            ("accept", "Put this into force", "Accepted; it is in force.")
        };
        if !client.json {
            // The consent carries the digest of what is shown here.
            print_values(&waiting, out)?;
            out.finish()?;
        }
        let asks = should_ask(client.json, args.yes, Some("a decision on the configuration"))?;
        if asks && !confirm(&format!("\n{question}?"), "decide", "Nothing was decided.")? {
            return Ok(Exit::Failed);
        }
        let body = json!({ "digest": waiting.digest, "verdict": verdict });
        let answer = client.post(&["reload", "consent"], &body).await?;
        client.print_line(&answer, out, outcome)
    })
}
