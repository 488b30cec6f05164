"""From a folder of photographs in any orientation to a reconstruction: the steps, and where their results lie."""
