//! Counts the instructions of a proxied call with valgrind's callgrind, which is repeatable on a shared machine.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    echo::Era,
    process::RunSettings,
    proxied::{CallPath, Callers, TestStand},
    report::{self, line},
};

/// Calls before the counting begins, which warm up connections, caches and the allocator.
const WARM_UP_CALLS: usize = 300;

pub async fn run(setting: &RunSettings, beside: Option<&Path>) -> Result<()> {
    report::section(
        "Instructions of a proxied call (callgrind; user space only, one connection)",
        "scripts/bench instructions [--beside PROGRAM] (valgrind comes with Debian's valgrind)",
    );
    let calls = if setting.quick { 500 } else { 3000 };
    for (name, era) in [("2025-11-25", Era::Legacy), ("2026-07-28", Era::Modern)] {
        for (endpoint, way) in [("HTTP", CallPath::Gateway), ("WebSocket", CallPath::GatewayWs)] {
            let ours = count(setting, &setting.gateway, era, way, calls).await?;
            let figures = match beside {
                None => format!("{ours:.0}"),
                Some(other) => {
                    let other = count(setting, other, era, way, calls).await?;
                    format!("{ours:.0}, beside {other:.0}: {:.3} times", ours / other)
                }
            };
            line(&format!("{name}, {endpoint}"), &figures);
        }
    }
    Ok(())
}

/// Returns the instructions for each of that many consecutive calls.
async fn count(setting: &RunSettings, gateway: &Path, era: Era, way: CallPath, calls: usize) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log");
    let under = vec![
        "valgrind".to_owned(),
        "--tool=callgrind".to_owned(),
        "--instr-atstart=no".to_owned(),
        format!("--callgrind-out-file={}", folder.path().join("out").display()),
        format!("--log-file={}", log.display()),
    ];
    let setting = RunSettings { gateway: gateway.to_owned(), under, ..setting.clone() };
    let stand = TestStand::new(&setting, era, 10).await?;
    let Callers(_, mut callers) = stand.callers(way, "echo").await?;
    let caller = callers.first_mut().context("no connection")?;
    for _ in 0..WARM_UP_CALLS {
        caller.once().await?;
    }
    instrument(stand.gateway.id(), "on")?;
    // The code that the switch itself left behind is translated and executed.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for _ in 0..calls {
        caller.once().await?;
    }
    instrument(stand.gateway.id(), "off")?;
    drop(callers);
    stand.gateway.stop()?;
    let text = std::fs::read_to_string(&log)?;
    let collected = text
        .lines()
        .find_map(|line| line.split_once("Collected :"))
        .and_then(|(_, number)| number.trim().parse::<f64>().ok())
        .with_context(|| format!("callgrind says nothing of what it collected:\n{text}"))?;
    Ok(collected / calls as f64)
}

fn instrument(gateway: u32, switch: &str) -> Result<()> {
    let output = Command::new("callgrind_control").args(["-i", switch, &gateway.to_string()]).output()?;
    ensure!(output.status.success(), "callgrind_control: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
