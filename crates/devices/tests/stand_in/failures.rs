//! Tests of driver failures and lost devices.

use std::sync::{Arc, Mutex};

use galatea_devices::{Devices, Error};

use crate::support::{devices, lose, with_stand_in};

/// Installs a loss handler and returns the messages that it receives.
fn listen(devices: &Devices) -> Arc<Mutex<Vec<String>>> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let told = heard.clone();
    devices.on_lost(move |gpu, why| told.lock().unwrap().push(format!("{gpu}: {why}")));
    heard
}

#[test]
fn a_loss_is_told_once() {
    with_stand_in("failures::a_loss_is_told_once", &[], || {
        let devices = devices();
        let heard = listen(&devices);
        let [first, second] = [0, 1].map(|number| devices.device(number).unwrap());
        assert!(first.memory_use().is_ok() && heard.lock().unwrap().is_empty());
        lose(0);
        assert!(first.memory_use().is_err() && first.memory_use().is_err());
        first.declare_lost("a library found it");
        second.declare_lost("a library found it");
        let expected = ["0: unspecified launch failure", "1: a library found it"];
        assert_eq!(*heard.lock().unwrap(), expected);
    });
}

#[test]
fn what_measures_devices_tells_of_losses_and_so_does_a_late_handler() {
    let test = "failures::what_measures_devices_tells_of_losses_and_so_does_a_late_handler";
    with_stand_in(test, &[], || {
        let devices = devices();
        let [lost, good] = [0, 1].map(|number| devices.device(number).unwrap());
        lose(0);
        assert!(!lost.is_lost());
        assert!(devices.measure(lost).is_some() && devices.measure(good).is_some());
        assert!(lost.is_lost() && !good.is_lost());
        assert_eq!(*listen(&devices).lock().unwrap(), ["0: GPU is lost"]);
    });
}

#[test]
fn a_failure_that_goes_away_is_that_of_one_call() {
    let test = "failures::a_failure_that_goes_away_is_that_of_one_call";
    with_stand_in(test, &[("STAND_IN_FAIL", "cuMemcpyAsync:2:1,cuEventCreate:2:400")], || {
        let devices = devices();
        let device = devices.device(0).unwrap();
        let (stream, memory) = (device.stream().unwrap(), device.allocate(4).unwrap());
        stream.upload(vec![1; 4], &memory).unwrap();
        let error = stream.upload(vec![2; 4], &memory).unwrap_err();
        assert!(matches!(error, Error::Driver { call: "cuMemcpyAsync", code: 1, .. }));
        assert_eq!(error.to_string(), "invalid argument");
        stream.record().unwrap();
        // The copy is queued, but recording the event that should follow it fails.
        assert!(stream.download(&memory, devices.allocate_host_buffer(4)).is_err());
        let read =
            stream.download(&memory, devices.allocate_host_buffer(4)).unwrap().wait().unwrap();
        assert_eq!((&read[..], device.is_lost()), (&[1; 4][..], false));
    });
}

#[test]
fn a_lost_device_says_so_and_others_go_on() {
    let test = "failures::a_lost_device_says_so_and_others_go_on";
    with_stand_in(test, &[("STAND_IN_DELAY_US", "100000")], || {
        let devices = devices();
        let [lost, good] = [0, 1].map(|number| devices.device(number).unwrap());
        let memories = [lost, good].map(|device| device.allocate_pooled(4).unwrap());
        let streams = [lost, good].map(|device| device.stream().unwrap());
        let downloads = [0, 1].map(|index| {
            streams[index].fill(&memories[index], 3).unwrap();
            streams[index].download(&memories[index], devices.allocate_host_buffer(4)).unwrap()
        });
        lose(0);
        let [first, second] = downloads.map(galatea_devices::PendingDownload::wait);
        let error = first.unwrap_err();
        assert!(error.is_lost());
        assert_eq!(error.to_string(), "GPU 0 is lost: unspecified launch failure");
        assert!(lost.is_lost() && !good.is_lost());
        assert_eq!(second.unwrap()[..], [3; 4]);
        // Every later call returns the same error without calling the driver.
        assert_eq!(lost.allocate(1).unwrap_err(), error);
        assert_eq!(lost.stream().unwrap_err(), error);
        assert_eq!(lost.memory_use().unwrap_err(), error);
        assert_eq!(streams[0].upload(vec![1; 4], &memories[0]).unwrap_err(), error);
        assert!(devices.measure(lost).unwrap().unwrap().utilization_percent.unwrap_err().lost);
        good.allocate(1).unwrap();
    });
}
