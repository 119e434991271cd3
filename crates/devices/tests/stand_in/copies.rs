//! Tests of copies on streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use galatea_devices::{Error, HostBuffer};

use crate::support::{Violations, devices, expecting, with_stand_in};

/// Bytes that record when their memory is dropped.
struct Told(Vec<u8>, Arc<AtomicBool>);

impl AsRef<[u8]> for Told {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
fn bytes_go_to_a_device_and_come_back() {
    with_stand_in("copies::bytes_go_to_a_device_and_come_back", &[], || {
        let devices = devices();
        for device in devices.iter() {
            let stream = device.stream().unwrap();
            let memory = device.allocate_pooled(6).unwrap();
            stream.fill(&memory, 9).unwrap();
            stream.upload(vec![1, 2, 3], &memory.slice(1..5).unwrap()).unwrap();
            let whole = stream.download(&memory, devices.allocate_host_buffer(6)).unwrap();
            let parts = [(1..3), (4..6)].map(|range| memory.slice(range).unwrap());
            let parts = parts.each_ref().map(|part| (part, HostBuffer::pageable(part.len())));
            let parts = stream.download_all(parts).unwrap();
            let whole = whole.wait().unwrap();
            assert!(whole.is_pinned());
            assert_eq!(whole[..], [9, 1, 2, 3, 9, 9]);
            let parts = parts.wait_all().unwrap();
            assert_eq!((&parts[0][..], &parts[1][..]), (&[1, 2][..], &[9, 9][..]));
        }
        assert_eq!(devices.pinned_usage().0, 0);
    });
}

#[test]
fn work_is_done_later_and_holds_what_it_uses() {
    let test = "copies::work_is_done_later_and_holds_what_it_uses";
    with_stand_in(test, &[("STAND_IN_DELAY_US", "50000")], || {
        let devices = devices();
        let device = devices.device(0).unwrap();
        let stream = device.stream().unwrap();
        let dropped = Arc::new(AtomicBool::new(false));
        let memory = device.allocate(4).unwrap();
        stream.upload(Told(vec![5; 4], dropped.clone()), &memory).unwrap();
        let event = stream.record().unwrap();
        assert_eq!((event.is_done(), dropped.load(Ordering::SeqCst)), (Ok(false), false));
        // The memory is released only after it has been copied. Otherwise, the stand-in would
        // report an error.
        let download = stream.download(&memory, devices.allocate_host_buffer(4)).unwrap();
        drop(memory);
        event.wait().unwrap();
        assert_eq!(download.wait().unwrap()[..], [5; 4]);
        stream.synchronize().unwrap();
        assert!(dropped.load(Ordering::SeqCst));
    });
}

#[test]
fn memory_of_a_dropped_download_is_not_given_away_before_its_copy() {
    let test = "copies::memory_of_a_dropped_download_is_not_given_away_before_its_copy";
    with_stand_in(test, &[("STAND_IN_DELAY_US", "50000")], || {
        let devices = devices();
        let device = devices.device(0).unwrap();
        let stream = device.stream().unwrap();
        let memory = device.allocate(4).unwrap();
        stream.fill(&memory, 1).unwrap();
        drop(stream.download(&memory, devices.allocate_host_buffer(4)).unwrap());
        let mut next = devices.allocate_host_buffer(4);
        next.fill(2);
        stream.synchronize().unwrap();
        assert_eq!(next[..], [2; 4]);
    });
}

#[test]
fn a_stream_waits_for_the_event_of_another() {
    let test = "copies::a_stream_waits_for_the_event_of_another";
    with_stand_in(test, &[("STAND_IN_DELAY_US", "20000")], || {
        let devices = devices();
        let [first, second] = [0, 1].map(|number| devices.device(number).unwrap());
        let (writing, reading) = (first.stream().unwrap(), second.stream().unwrap());
        let (here, there) = (first.allocate(3).unwrap(), second.allocate(3).unwrap());
        for byte in 1..20 {
            writing.upload(vec![byte; 3], &here).unwrap();
            reading.wait_for(&writing.record().unwrap()).unwrap();
            reading.copy(&here, &there).unwrap();
            let download = reading.download(&there, devices.allocate_host_buffer(3)).unwrap();
            writing.wait_for(download.event()).unwrap();
            assert_eq!(download.wait().unwrap()[..], [byte; 3]);
        }
    });
}

#[test]
fn copies_stay_within_memory() {
    with_stand_in("copies::copies_stay_within_memory", &[], || {
        let devices = devices();
        let device = devices.device(0).unwrap();
        let (stream, memory) = (device.stream().unwrap(), device.allocate(4).unwrap());
        let text = |error: Error| error.to_string();
        assert_eq!(
            stream.upload(vec![0; 5], &memory).map_err(text),
            Err("a copy of 5 bytes to or from 4".to_owned())
        );
        assert!(stream.download(&memory, devices.allocate_host_buffer(5)).is_err());
        assert!(stream.copy(&memory, &device.allocate(5).unwrap()).is_err());
        assert_eq!(memory.slice(3..5).map(drop).map_err(text), Err("bytes 3 to 5 of 4".into()));
        let empty = memory.slice(4..4).unwrap();
        stream.upload(Vec::new(), &empty).unwrap();
        stream.fill(&empty, 1).unwrap();
        assert_eq!(
            stream.download(&empty, devices.allocate_host_buffer(0)).unwrap().wait().unwrap()[..],
            []
        );
    });
}

/// Demonstrates the value of the stand-in's checks, which detect misuse that this crate's types
/// prevent.
#[test]
fn the_stand_in_sees_a_stream_that_two_threads_share() {
    let test = "copies::the_stand_in_sees_a_stream_that_two_threads_share";
    let seen = Violations::One("a stream is used by two threads at a time");
    expecting(&seen, test, &[("STAND_IN_DELAY_US", "200000")], || {
        let devices = devices();
        let device = devices.device(0).unwrap();
        let (stream, memory) = (device.stream().unwrap(), device.allocate(4).unwrap());
        stream.fill(&memory, 1).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                stream.fill(&memory, 2).unwrap();
                stream.synchronize().unwrap();
            });
        });
    });
}

#[test]
fn the_stand_in_sees_a_copy_that_is_read_before_its_event() {
    let test = "copies::the_stand_in_sees_a_copy_that_is_read_before_its_event";
    let seen = Violations::One("a stream does not wait for the copy of another one");
    expecting(&seen, test, &[("STAND_IN_DELAY_US", "200000")], || {
        let devices = devices();
        let device = devices.device(0).unwrap();
        let (writing, reading) = (device.stream().unwrap(), device.stream().unwrap());
        let (early, late) = (device.allocate(4).unwrap(), device.allocate(4).unwrap());
        writing.upload(vec![1; 4], &late).unwrap();
        reading.wait_for(&writing.record().unwrap()).unwrap();
        reading.download(&late, devices.allocate_host_buffer(4)).unwrap().wait().unwrap();
        writing.upload(vec![1; 4], &early).unwrap();
        reading.download(&early, devices.allocate_host_buffer(4)).unwrap().wait().unwrap();
        writing.synchronize().unwrap();
    });
}

#[test]
fn single_copies_share_streams_and_are_done_when_they_return() {
    let test = "copies::single_copies_share_streams_and_are_done_when_they_return";
    with_stand_in(test, &[("STAND_IN_DELAY_US", "5000")], || {
        let devices = devices();
        std::thread::scope(|scope| {
            for value in 0..4_u8 {
                let devices = &devices;
                scope.spawn(move || {
                    let on = |number| devices.device(number).unwrap().allocate_pooled(4).unwrap();
                    let (first, second) = (on(0), on(1));
                    for round in 0..5 {
                        devices.to_device(vec![value, round, 0, 0], &first).unwrap();
                        assert_eq!(devices.to_host(&first).unwrap()[..], [value, round, 0, 0]);
                        devices.copy(&first, &second).unwrap();
                        // The other stream doesn't wait for the stream that is copying.
                        let other = second.device().stream().unwrap();
                        let copied =
                            other.download(&second, devices.allocate_host_buffer(4)).unwrap();
                        assert_eq!(copied.wait().unwrap()[..], [value, round, 0, 0]);
                    }
                    let short = first.slice(1..3).unwrap();
                    assert!(matches!(devices.to_device(vec![0; 3], &short), Err(Error::Range(_))));
                    assert!(matches!(devices.copy(&short, &second), Err(Error::Range(_))));
                });
            }
        });
        assert_eq!(devices.pinned_usage().0, 0);
    });
}
