//! Counts the instructions of proxied calls, proposals and decisions with valgrind's callgrind, which is repeatable on a
//! shared machine.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    calls::Caller,
    echo::Era,
    http::Http,
    process::{RunSettings, Server},
    proposals::propose,
    proxied::{CallPath, Callers, TestStand},
    report::{self, line},
    store,
    tokens::{Credential, TokenStand},
};

/// Requests before the counting begins, which warm up connections, caches and the allocator.
const WARM_UP_CALLS: usize = 300;

#[derive(Clone, Copy)]
enum Request {
    Call(Era, CallPath),
    CallWith(Credential),
    Proposal,
    Decision,
}

const REQUESTS: [(&str, Request); 8] = [
    ("call, 2025-11-25, HTTP", Request::Call(Era::Legacy, CallPath::Gateway)),
    ("call, 2025-11-25, WebSocket", Request::Call(Era::Legacy, CallPath::GatewayWs)),
    ("call, 2026-07-28, HTTP", Request::Call(Era::Modern, CallPath::Gateway)),
    ("call, 2026-07-28, WebSocket", Request::Call(Era::Modern, CallPath::GatewayWs)),
    ("call with a key, 2026-07-28, HTTP", Request::CallWith(Credential::Key)),
    ("call with a token, 2026-07-28, HTTP", Request::CallWith(Credential::Token)),
    ("proposal, 2026-07-28, HTTP", Request::Proposal),
    ("decision, REST", Request::Decision),
];

pub async fn run(setting: &RunSettings, beside: Option<&Path>) -> Result<()> {
    report::section(
        "Instructions of a proxied call, a proposal and a decision (callgrind; user space only, one connection)",
        "scripts/bench instructions [--beside PROGRAM] (valgrind comes with Debian's valgrind)",
    );
    for (name, request) in REQUESTS.into_iter().filter(|(name, _)| name.contains(&setting.case)) {
        let ours = count(setting, &setting.gateway, request).await?;
        let figures = match beside {
            None => format!("{ours:.0}"),
            Some(other) => match count(setting, other, request).await {
                Ok(other) => format!("{ours:.0}, beside {other:.0}: {:.3} times", ours / other),
                // An older program may not know the setting.
                Err(error) => format!("{ours:.0}, but the other program cannot do it: {error}"),
            },
        };
        line(name, &figures);
    }
    Ok(())
}

/// Returns the instructions for each of many consecutive requests.
async fn count(setting: &RunSettings, gateway: &Path, request: Request) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log");
    let wrapper_command = vec![
        "valgrind".to_owned(),
        "--tool=callgrind".to_owned(),
        "--instr-atstart=no".to_owned(),
        format!("--callgrind-out-file={}", folder.path().join("out").display()),
        format!("--log-file={}", log.display()),
    ];
    let setting = RunSettings { gateway: gateway.to_owned(), wrapper_command, ..setting.clone() };
    let requests = match request {
        Request::Call(era, way) => count_calls(&setting, era, way).await?,
        Request::CallWith(credential) => count_calls_with(&setting, credential).await?,
        Request::Proposal => count_proposals(&setting).await?,
        Request::Decision => count_decisions(&setting).await?,
    };
    let text = std::fs::read_to_string(&log)?;
    let collected = text
        .lines()
        .find_map(|line| line.split_once("Collected :"))
        .and_then(|(_, number)| number.trim().parse::<f64>().ok())
        .with_context(|| format!("callgrind does not say what it collected:\n{text}"))?;
    Ok(collected / requests as f64)
}

async fn count_calls(setting: &RunSettings, era: Era, way: CallPath) -> Result<usize> {
    let stand = TestStand::new(setting, era, 10).await?;
    let Callers(_, callers) = stand.callers(way, "echo").await?;
    count_calls_of(setting, stand.gateway, callers).await
}

async fn count_calls_with(setting: &RunSettings, credential: Credential) -> Result<usize> {
    let stand = TokenStand::new(setting).await?;
    let callers = stand.callers(credential).await?;
    count_calls_of(setting, stand.gateway, callers).await
}

async fn count_calls_of(setting: &RunSettings, gateway: Server, mut callers: Vec<Box<dyn Caller>>) -> Result<usize> {
    let calls = if setting.quick { 500 } else { 3000 };
    let caller = callers.first_mut().context("no connection")?;
    for _ in 0..WARM_UP_CALLS {
        caller.once().await?;
    }
    instrument(&gateway, "on").await?;
    for _ in 0..calls {
        caller.once().await?;
    }
    instrument(&gateway, "off").await?;
    drop(callers);
    gateway.stop()?;
    Ok(calls)
}

async fn count_proposals(setting: &RunSettings) -> Result<usize> {
    let proposals = if setting.quick { 200 } else { 1000 };
    let (mut servers, project) = store::start(setting, None, 1).await?;
    let gateway = servers.pop().context("no gateway")?;
    let mut http = Http::connect(gateway.port).await?;
    for n in 0..WARM_UP_CALLS {
        propose(&mut http, gateway.port, &project, &format!("Warm up {n}")).await?;
    }
    instrument(&gateway, "on").await?;
    for n in 0..proposals {
        propose(&mut http, gateway.port, &project, &format!("Change {n}")).await?;
    }
    instrument(&gateway, "off").await?;
    gateway.stop()?;
    Ok(proposals)
}

async fn count_decisions(setting: &RunSettings) -> Result<usize> {
    let decisions = if setting.quick { 200 } else { 1000 };
    let (mut servers, project) = store::start(setting, None, 1).await?;
    let gateway = servers.pop().context("no gateway")?;
    let key = gateway.reviewer(setting)?;
    let mut http = Http::connect(gateway.port).await?;
    let mut requests = Vec::new();
    for n in 0..WARM_UP_CALLS + decisions {
        let change = propose(&mut http, gateway.port, &project, &format!("Change {n}")).await?;
        requests.push(store::rejection(&mut http, gateway.port, &key, &change).await?);
    }
    for (n, request) in requests.iter().enumerate() {
        if n == WARM_UP_CALLS {
            instrument(&gateway, "on").await?;
        }
        store::decide(&mut http, request).await?;
    }
    instrument(&gateway, "off").await?;
    gateway.stop()?;
    Ok(decisions)
}

/// Switches the counting. The code that the switch leaves behind is translated and executed before this returns.
async fn instrument(gateway: &Server, switch: &str) -> Result<()> {
    let output = Command::new("callgrind_control").args(["-i", switch, &gateway.id().to_string()]).output()?;
    ensure!(output.status.success(), "callgrind_control: {}", String::from_utf8_lossy(&output.stderr));
    tokio::time::sleep(Duration::from_millis(200)).await;
    Ok(())
}
