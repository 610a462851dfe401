"""The replay: failures arrive one by one, as often as Table 3 counts them, and every one is confirmed or corrected."""
