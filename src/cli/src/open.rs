//! `open`: creates a one-time sign-in code in the store, and prints the link that carries it in its fragment.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use jiff::Timestamp;

use super::{
    args::OpenArgs,
    client::own_gateway::{self, LocalGateway},
    exit::{Exit, Failure},
    output::{Output, remark},
    place_from_settings, store_location,
};
use countersign_attach::socket;
use countersign_auth::codes;
use countersign_net::{self as net, tls};

pub fn run(args: &OpenArgs, out: &mut Output) -> Result<Exit, Failure> {
    let location = store_location(&args.data)?;
    let gateway = verified_gateway(&location.data)?;
    let place = place_from_settings(&location)?;
    let code = codes::create(&*place.credentials()?, Timestamp::now())?;
    let link = format!("{}/#code={code}", gateway.link_base.trim_end_matches('/'));
    out.line(&link)?;
    out.finish()?;
    let minutes = codes::LIFETIME.as_mins();
    if !args.print && open_browser(&link) {
        remark(&format!("Opening the dashboard. The link works once, within {minutes} minutes."));
    } else {
        remark(&format!("Open this link in your browser. It works once, within {minutes} minutes."));
    }
    Ok(Exit::Ok)
}

/// Returns the gateway that serves the data directory, after it has proved its identity. Otherwise another program could
/// get the sign-in code from the link.
fn verified_gateway(data: &Path) -> Result<LocalGateway, Failure> {
    let gateway = own_gateway::find(data)?;
    actix_web::rt::System::new()
        .block_on(async {
            if gateway.url.scheme() == "https" {
                // Its certificate need not cover the address that this machine uses; the browser checks the one in the
                // link. Here it is enough that the gateway runs, because then nobody else has its port.
                return match socket::connect(data).await {
                    Ok(Some(_)) => Ok(()),
                    Ok(None) => Err(format!("the gateway of {} has ended", data.display())),
                    Err(error) => Err(error.to_string()),
                };
            }
            gateway.verify(&net::client(tls::public_config())).await
        })
        .map_err(|why| Failure::new(Exit::Unavailable, why))?;
    Ok(gateway)
}

/// Opens the link in the desktop's browser, if there is one. While `xdg-open` runs, other users of this machine may see
/// the code among its arguments, but it works once and the browser is faster.
fn open_browser(link: &str) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !set("DISPLAY") && !set("WAYLAND_DISPLAY") {
        return false;
    }
    let started =
        Command::new("xdg-open").arg(link).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    // Browsers that stay in the foreground are not waited for.
    started.is_ok()
}
