"""Rates and places of steps, by hand."""

from __future__ import annotations

import pytest

from pipeline.drafter.training.recipe import Course, Schedule, course_of, schedule_of


def test_the_rate_rises_to_its_peak_and_falls_along_a_cosine() -> None:
    schedule = Schedule(peak=2.0, steps=10, warmup=2)

    assert [1.0, 2.0, 2.0] == [schedule.rate(step) for step in range(3)]
    assert pytest.approx(1.0) == schedule.rate(6)
    assert pytest.approx(2 * 0.038060233744356624) == schedule.rate(9)
    assert pytest.approx(0.0) == schedule.rate(10)


def test_without_a_warm_up_it_begins_at_its_peak() -> None:
    assert 3.0 == schedule_of(3.0, 100, 0.0).rate(0)


def test_the_warm_up_is_a_share_of_all_steps_and_one_at_least() -> None:
    assert [1, 2, 15, 3] == [
        schedule_of(1.0, steps, share).warmup for steps, share in ((10, 0.015), (101, 0.015), (1000, 0.015), (3, 0.99))
    ]


def test_a_run_of_one_step_takes_it_at_its_peak() -> None:
    assert 1.0 == schedule_of(1.0, 1, 0.015).rate(0)


def test_each_step_has_an_epoch_and_a_place_in_it() -> None:
    course = course_of(batches=[5, 4, 6], batches_a_step=2)

    assert ((3, 2, 3), 8) == (course.epochs, course.steps)
    assert [(0, 0), (0, 2), (1, 0), (1, 1), (2, 0), (2, 2)] == [course.place(step) for step in (0, 2, 3, 4, 5, 7)]


def test_steps_that_were_asked_for_end_it_before_its_epochs() -> None:
    course = Course((3, 3), most=4)

    assert (4, (1, 0)) == (course.steps, course.place(3))
    with pytest.raises(IndexError):
        course.place(4)
