"""Tests of what protocols share."""
