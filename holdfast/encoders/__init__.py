"""Public encoders P_R and the guidance producer P_G."""
