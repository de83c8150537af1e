//! `changes edit`: replaces the arguments of a change, from the command line, a file or an editor.

use std::{
    fs,
    io::{IsTerminal, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{json, value::RawValue};

use super::{conflict_failure, render, show_hint};
use crate::{
    args::EditArgs,
    client::{Client, ResponseBody},
    exit::{Exit, Failure},
    output::{Output, Style, indented, one_line, remark},
};
use countersign_domain::changes::{Change, ChangeState};

/// Bytes of an arguments file: more than any gateway accepts.
const MAX_FILE_BYTES: u64 = 64 << 20;

pub async fn run(client: &Client, args: &EditArgs, json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let change: Change = client.get(&["changes", &args.id], &[]).await?.read()?;
    if let Some(version) = args.version.filter(|version| *version != change.version) {
        let message =
            format!("the change is at version {} and not {version}; {}", change.version, show_hint(&change.id));
        return Err(Failure::new(Exit::Conflict, message));
    }
    if !matches!(change.state, ChangeState::Pending | ChangeState::Stale) {
        let state = render::state_name(change.state);
        return Err(Failure::new(Exit::Conflict, format!("the change is {state}: there is nothing to edit")));
    }
    let mut draft = None;
    let text = match (&args.arguments, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => read(file)?,
        (None, None) => {
            let before = format!("{}\n", indented(change.arguments.get()));
            let file = Draft::new(&before)?;
            let after = open_editor(&file.path)?;
            if after.trim() == before.trim() {
                remark("Nothing was edited.");
                return Ok(Exit::Failed);
            }
            draft = Some(file);
            after
        }
    };
    let sent = send(client, &change, args, &text).await;
    let answer = match sent {
        Ok(answer) => answer,
        Err(mut failure) => {
            if let Some(draft) = draft {
                // The user's text is kept: an hour of typing is not thrown away for a comma.
                let path = draft.keep();
                let id = one_line(&change.id).into_owned();
                let retry_command = format!("countersign changes edit {id} -f {}", path.display());
                failure.message =
                    format!("{}; what you wrote is kept: `{retry_command}`", failure.message.trim_end_matches('.'));
            }
            return Err(failure);
        }
    };
    if json {
        out.json(&answer.json_line()?)?;
        return Ok(Exit::Ok);
    }
    let after: Change = answer.read()?;
    render::print_change(&after, jiff::Timestamp::now(), out)?;
    out.line("")?;
    out.styled(Style::Green, "Edited; what it would do now is shown above. Nobody has approved this yet.")?;
    out.line("")?;
    Ok(Exit::Ok)
}

async fn send(client: &Client, change: &Change, args: &EditArgs, text: &str) -> Result<ResponseBody, Failure> {
    let arguments: &RawValue = serde_json::from_str(text.trim())
        .map_err(|error| Failure::new(Exit::Usage, format!("the arguments are not JSON: {error}")))?;
    if !arguments.get().starts_with('{') {
        return Err(Failure::new(Exit::Usage, "the arguments must be a JSON object"));
    }
    // Sent as raw text, so that numbers keep all their digits.
    let comment = json!(args.comment);
    let body = format!(r#"{{"arguments":{},"version":{},"comment":{comment}}}"#, arguments.get(), change.version);
    client
        .post_text(&["changes", &change.id, "edit"], body)
        .await
        .map_err(|refusal| conflict_failure(refusal, &change.id))
}

fn read(file: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let failed = |error| Failure::new(Exit::Usage, format!("{} cannot be read: {error}", file.display()));
    if file == Path::new("-") {
        std::io::stdin().lock().take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
    } else {
        fs::File::open(file).map_err(failed)?.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
    }
    Ok(text)
}

/// A file for the editor that only this user can read, removed on drop unless it is kept.
struct Draft {
    path: PathBuf,
    is_kept: bool,
}

impl Draft {
    fn new(text: &str) -> Result<Self, Failure> {
        let path = std::env::temp_dir()
            .join(format!("countersign-{}.json", nanoid::nanoid!(12, &nanoid::alphabet::SAFE[2..])));
        let failed = |error| Failure::new(Exit::Failed, format!("{} cannot be written: {error}", path.display()));
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        Ok(Self { path, is_kept: false })
    }

    fn keep(mut self) -> PathBuf {
        self.is_kept = true;
        self.path.clone()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens the file in the editor, chosen as `git commit` chooses it.
fn open_editor(path: &Path) -> Result<String, Failure> {
    let chosen = ["VISUAL", "EDITOR"].iter().find_map(|name| std::env::var(name).ok().filter(|e| !e.trim().is_empty()));
    let editor = match chosen {
        Some(editor) => editor,
        None if std::io::stdin().is_terminal() => "vi".to_owned(),
        None => {
            return Err(Failure::new(
                Exit::Usage,
                "there is no terminal to edit on; give the new arguments with --arguments or --file",
            ));
        }
    };
    // The variable may hold arguments too, so a shell splits it; the file's name is passed as a parameter.
    let status = Command::new("sh").arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(path).status();
    let status =
        status.map_err(|error| Failure::new(Exit::Failed, format!("the editor {editor:?} cannot be run: {error}")))?;
    if !status.success() {
        return Err(Failure::new(
            Exit::Failed,
            format!("the editor {editor:?} ended with {status}; nothing was edited"),
        ));
    }
    read(path)
}
