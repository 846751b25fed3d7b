"""Tools: functions of the caller that programs may call, checked and described for the model."""
